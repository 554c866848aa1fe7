"""What is computed: a checkpoint's configuration, its weights, and the decoder they fill."""

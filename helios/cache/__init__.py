"""Where keys and values live: the pool's tensors, the pages they are cut into, and the prefixes that requests share."""

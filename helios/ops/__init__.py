"""One file an operation: the PyTorch reference and, beside it, the Triton kernel, behind one torch.library op."""

"""What runs tensors: the port, and the adapter for Triton."""

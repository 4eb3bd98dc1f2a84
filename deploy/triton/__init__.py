"""Triton: the embedded server, the model repository and the reconciler that keeps both at the serving Task."""

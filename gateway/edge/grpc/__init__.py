"""The gRPC edge: the Open Inference Protocol's service over the same pipeline as HTTP."""

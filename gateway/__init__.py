"""Serve Hugging Face text models through NVIDIA Triton: the data plane and the part of the control plane it reads."""

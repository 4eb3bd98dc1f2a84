"""Operators' side: the CLI, the embedded control plane, the embedded Triton and model sync."""

"""The embedded Triton: the tritonserver on PATH or in the nvidia-pytriton wheel, started with a key.

It runs on a laptop (``up``) and in the image ``triton-gateway-triton-cpu``. It is its own package because that image
contains neither ``laptop`` nor a registry. The command ``triton`` calls it; ``doctor`` and ``up`` ask it which server
would be used. It imports only what it needs, because a killed Triton waits for these imports. It knows nothing about
models, and supervises nothing.
"""

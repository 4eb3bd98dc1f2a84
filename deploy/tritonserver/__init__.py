"""The embedded Triton: the tritonserver on PATH or in the nvidia-pytriton wheel, as a child of ours with a key.

Runs beside the server it starts, on a laptop (``up``) and in the image ``triton-gateway-triton-cpu``; a room of its
own, because that image holds neither ``laptop`` nor a registry. Called by the command ``triton``; ``doctor`` and
``up`` ask it which server would be used. It must never import what it does not need (a Triton that was killed waits
for these imports), know what models are, or leave a process, stub or shared memory behind.
"""

"""The embedded Triton: the server of the nvidia-pytriton wheel, started on laptops and in the image for CPUs."""

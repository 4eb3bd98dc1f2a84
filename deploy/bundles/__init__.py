"""Turning a Hugging Face model into a bundle Triton can serve: export, and later optimise, check and register."""

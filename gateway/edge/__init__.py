"""Bytes in and out, and the limits on them."""

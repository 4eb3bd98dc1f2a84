"""`triton-gateway up`: everything on one machine, for development."""

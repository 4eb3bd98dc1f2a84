"""The HTTP edge: bytes to bodies, routes, operations, and the only map from error kinds to status codes."""

"""The gRPC edge: the Open Inference Protocol's service over the same data plane as HTTP.

``app`` starts gRPC's own server if a port is set; the server calls this package. Limits, order of work and errors must
be those of HTTP: only the form of messages differs.
"""

"""The gRPC edge: the Open Inference Protocol's service over the same data plane as HTTP.

Called by gRPC's own server, which ``app`` starts where a port is set. It must never have a limit, an order or an error
of its own: what differs from HTTP is the form.
"""

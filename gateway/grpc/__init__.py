"""gRPC: the Open Inference Protocol's service over the same data plane as HTTP.

Called by gRPC's own server, which ``app`` starts if a port is set. Its limits, errors and order of work must never
differ from those of HTTP: only the form of messages does.
"""

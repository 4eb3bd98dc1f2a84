"""What HTTP and gRPC share: the rights that addresses need, quotas, priority classes, threads for large bodies.

Called by ``gateway.http`` and ``gateway.grpc``. It must never read bytes or know a protocol.
"""

"""Bytes in and out, and the limits on them: HTTP and gRPC.

Owns connections; called by the servers that ``__main__`` starts. Everything it reads becomes a ``Call`` of a protocol
and goes through ``DataPlane.submit``; it must never read a body without a permit, know what a task means, or choose
who answers.
"""

"""Protocols: one module for each API that clients know, which parses its requests and renders its answers.

Called by the edges with a body, and by the data plane with the answer to render. Pure: no HTTP and no gRPC. A protocol
must never call Triton or change what an endpoint does.
"""

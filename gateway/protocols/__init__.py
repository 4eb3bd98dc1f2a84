"""Protocols: one module for each API that clients know, which parses its requests and renders its answers.

The edges call a protocol with a body, and the data plane calls it with the answer to render. Pure: no HTTP and no gRPC.
A protocol must never call Triton or change what an endpoint does.
"""

"""Request forms that people already know, translated to and from the endpoints' own: one module each.

Called by the edges with a body, and by the data plane with the answer to render. Pure: no HTTP and no gRPC here, and a
protocol must never ask Triton or change what an endpoint does; it says in which words.
"""

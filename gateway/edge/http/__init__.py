"""The HTTP edge: heads within limits, bodies, routes, operations, and the only map from error kinds to statuses.

Called by uvicorn, whose protocol class is ``protocol``; plain requests take ``fast``, all others the ASGI application.
It must never let the two answer differently, nor hold a connection that sends nothing for ever.
"""

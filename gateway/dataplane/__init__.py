"""From a call to its answer: admission, route, lease, deadline, one end.

Owns a request from ``submit`` to the record of its end, shadows included; called by the edges and by a hook's
``send_request``. It must never know bytes or protocols (a ``Call`` has them), never wait for control or the registry,
and never end a request twice or not at all.
"""

"""From a call to its answer: admission, route, lease, deadline, and one end. Shadow traffic as well.

Owns a request from ``submit`` to the record of its end. Called by the edges and by a hook's ``send_request``. It must
never know bytes or protocols (a ``Call`` has them) and never wait for control or the registry. It ends every request
exactly once.
"""

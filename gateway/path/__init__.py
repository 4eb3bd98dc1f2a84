"""The path of a request: caller, rights, admission, version and lease, deadline, and one end.

Owns a request from its head to the record of its end (``serve``, ``ask``). Called by the transports and by a hook's
``send_request``. It must never know bytes or protocols (a ``Call`` has them) and never wait for control or the
registry. It ends every request exactly once.
"""

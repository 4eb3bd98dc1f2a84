"""HTTP: bytes of a connection to requests within limits, inference; the only map from error kinds to statuses.

Called by ``__main__``, whose server listens with ``server``. ``core`` reads one connection, ``exchange`` is one request
and its answer, ``connections`` holds the limits of all of them, ``addresses`` lists where inference is asked for, and
``bridge`` runs ``gateway/admin``. It must never hold a connection that sends nothing for ever, nor run a task for a
request that needs none.
"""

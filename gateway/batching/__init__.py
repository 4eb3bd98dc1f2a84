"""Lets concurrent requests of one endpoint version share calls; start with ``batcher``.

Owns the queue, the calls in flight, and the rules for admission, order and size of calls. Used by ``handlers``. It
must never let one entry of a batch fail another, never make a lone request wait, and know no transport.
"""

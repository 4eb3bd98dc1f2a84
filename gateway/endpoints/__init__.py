"""What answers: text, tensors, hooks, generated text; and how calls share a batch.

Owns an endpoint version's handler, its batcher and its leases; made by ``control/assemble``, called by ``dataplane``.
It must never route, never wait in ``start``, and never let one entry of a batch fail another's.
"""

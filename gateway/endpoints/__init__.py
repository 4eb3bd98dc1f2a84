"""Handlers that answer requests (text, tensors, hooks, generated text), and the batcher that lets requests share calls.

Owns an endpoint version's handler, batcher and leases. Made by ``control/assemble``, called by ``dataplane``.
They must never route, never wait in ``start``, and never let one entry of a batch fail another.
"""

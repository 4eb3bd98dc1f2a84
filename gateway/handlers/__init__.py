"""Handlers that answer requests: text, tensors, hooks, generated text. Shadow traffic as well.

Owns an endpoint version's handler and leases. Made by ``control/assemble``, called by ``path``. They must never
route, and know neither protocols nor transports.
"""

"""Who changed what: every change of an endpoint, a weight, a default, a key or a quota, in a record that only grows.

``changes`` is pure: what the serving Task says, and how two of its states differ. ``recorder`` looks and writes, beside
the serving Task. Called by model sync, rollouts and the command line; it must never make them fail, nor
write to the serving Task itself.
"""

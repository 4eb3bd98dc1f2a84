"""The history of changes: who changed an endpoint, a weight, a default, a key or a quota, and when.

``changes`` is pure: the facts in the serving Task, and the differences between two of its states. ``recorder`` reads
the Task and writes entries beside it: a duty of the controller. It never writes to the serving Task itself.
"""

"""Follows the serving Task, and has ready what it asks for: compile (pure), assemble (I/O), reconcile (the loop).

Owns versions from the moment they are wanted until their last lease is given back; called by ``app``, which starts it,
it hands the data plane one immutable snapshot after the other. It must never wait on the event loop (each thing it
waits for has threads of its own), and never take out of service what serves because something new does not work.
"""

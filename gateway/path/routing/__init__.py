"""Resolves a path to the endpoint version that answers: weights, the immutable snapshot, and its replacement.

Called by ``serve`` for every request; ``control/reconcile`` publishes snapshots. It must never change a published
snapshot, nor choose by anything but the weights and the caller's key.
"""

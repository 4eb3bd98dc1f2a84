"""Resolves a path to the endpoint version that answers: weights, the immutable snapshot, and its replacement.

``submit`` calls it for every request, and ``control/publish`` publishes snapshots. It must never change a published
snapshot, nor choose by anything but the weights and the caller's key.
"""

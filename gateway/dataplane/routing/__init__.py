"""From a path to the endpoint version that answers: weights, the immutable snapshot, the one swap.

Called by ``submit`` for every request, and by ``control/publish``, which makes snapshots. It must never change a
snapshot that was published, nor choose in another way than the weights and the caller's key say.
"""

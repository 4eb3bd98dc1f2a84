"""From a path to the endpoint version that answers: weights, the immutable snapshot, the one swap."""

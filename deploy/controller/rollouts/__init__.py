"""Rollouts and decided weights: a new version beside the stable one, step by step, behind a statistical gate.

The code runs in two places: ``keeper`` in every model sync, beside Triton; ``runner`` in ``triton-gateway canary run``,
on an operator's machine or in a pipeline. Both use ``record`` (what is written), ``source`` (the gateways' counters)
and the pure files that decide when a rollout moves: ``steps``, ``gate``, ``bets``, ``labels``, ``pairs``. Weights are
never written without the recorded decision that explains them, and nothing is decided on counters that could not be
read.
"""

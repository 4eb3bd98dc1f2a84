"""Rollouts and decided weights: a new version beside the stable one, step by step, behind a statistical gate.

A room of its own, because its code runs in two places and belongs to neither: ``keeper`` in every model sync, beside
Triton; ``runner`` in ``triton-gateway canary run``, wherever an operator or a pipeline runs it. What they agree on is
in ``record`` (what is written), ``steps``, ``gate``, ``bets`` and ``labels`` (when a rollout moves, pure) and
``source`` (what gateways have counted). It must never write weights without the recorded decision that explains them,
and decides nothing on counts that it could not read.
"""

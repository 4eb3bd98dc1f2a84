"""Rollouts: a new version beside the stable one, step by step, behind a statistical gate.

``duty`` is called by the controller; its ``carrier`` carries out the rollouts of one endpoint with ``record`` (what is
written), ``counts`` (the gateways' counters) and the pure files that decide when a rollout moves: ``steps``, ``gate``,
``wagers``, ``bets``. Commands write requests and read states with ``record``. A rollout never writes weights
without the recorded decision that explains them, and decides nothing on counters that could not be read.
"""

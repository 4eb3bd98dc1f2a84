"""Metrics: the catalogue (data), the observer that counts, the bins of drift, and the publisher of ``/metrics``.

Called by the data plane when a request ends, and by the edge when ``/metrics`` is requested. It counts and judges
nothing: that is for the controller. ``catalog``, ``drift``, ``mirrored`` and ``variables`` are public, for boards,
rules and ``deploy``. It must never delay a request, and its memory must not grow with what clients send.
"""

from gateway.metrics import catalog, drift, mirrored, variables

__all__ = ["catalog", "drift", "mirrored", "variables"]

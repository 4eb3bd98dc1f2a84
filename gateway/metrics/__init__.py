"""Metrics: the catalogue (data), the observer that counts, drift, and the publisher of ``/metrics``.

Called by the data plane when a request ends, and by the edge when ``/metrics`` is requested. ``catalog``, ``compared``,
``drift``, ``mirrored``, ``texts`` and ``variables`` are public, for boards, rules and ``deploy``. It must never delay a
request, and its memory must not grow with what clients send.
"""

from gateway.metrics import catalog, compared, drift, mirrored, texts, variables

__all__ = ["catalog", "compared", "drift", "mirrored", "texts", "variables"]

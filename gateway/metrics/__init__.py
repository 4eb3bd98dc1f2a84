"""What is counted: the catalogue (data), the observer that counts, drift, and the page that shows it.

Called by the data plane when a request ends and by the edge when somebody asks for ``/metrics``; ``catalog``,
``compared``, ``drift``, ``texts`` and ``variables`` are public, for boards, rules and ``deploy``. It must never make a
request wait, nor grow with what clients invent.
"""

from gateway.metrics import catalog, compared, drift, texts, variables

__all__ = ["catalog", "compared", "drift", "texts", "variables"]

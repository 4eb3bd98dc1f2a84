"""When this model sync reports what it has in its Triton: on change, at most every ten seconds.

Without a change it reports hourly, and every minute while a model fails. ``reconcile`` calls it in the thread that
reads the registry. The controller and gateways read the reports (``gateway.registry.reports``). A registry that is away
is asked again ten seconds later.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from deploy.tools.errors import GatewayError

log = logging.getLogger("triton_gateway.sync")

LEAST_S: Final = 10.0
FAILING_S: Final = 60.0
"""Seconds after which the report of a model that fails is repeated: an old one does not count."""
MOST_S: Final = 3600.0
_PHASES: Final = {"ready": "loaded", "cold": "loaded", "leaving": "retiring"}

Rows = Sequence[Mapping[str, Any]]


class Reporter:
    """Reports with ``send``, which gets the fields of ``ModelReport``. ``clock``: seconds. One thread at a time."""

    def __init__(self, send: Callable[[Rows], None], *, clock: Callable[[], float]) -> None:
        self._send = send
        self._clock = clock
        self._sent: Rows | None = None
        self._tried_at = -math.inf
        self._said = ""

    def is_due(self, models: Rows) -> bool:
        """Return whether ``models`` (``StatusBoard.models``) should be reported now."""
        since, told = self._clock() - self._tried_at, _told(models)
        most = FAILING_S if any(one["reason"] for one in told) else MOST_S
        return since >= most or (since >= LEAST_S and told != self._sent)

    def write(self, models: Rows) -> None:
        """Report ``models``. Never raises for a registry that refuses or is away."""
        self._tried_at = self._clock()
        told = _told(models)
        try:
            self._send(told)
        except GatewayError as error:
            if error.message != self._said:
                log.warning("the state of this Triton cannot be reported: %s", error.message)
            self._said = error.message
            return
        self._sent, self._said = told, ""


def _told(models: Rows) -> Rows:
    return [
        {
            "url": one["endpoint"], "model": one["model_id"], "name": one["name"],
            "phase": _PHASES.get(one["state"], "pending"), "reason": one["reason"] if one["state"] == "failed" else "",
            "is_final": one["is_final"], "sha256": one.get("sha256", ""), "parts": one.get("parts", ""),
        } for one in models
    ]  # fmt: skip

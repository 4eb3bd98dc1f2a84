"""What model sync tells of its Triton: its status, and a report beside the serving Task.

Gateways and the controller read the report (``gateway.registry.reports``): it is sent on change, at most every ten
seconds, every minute while a model fails, and else hourly.
"""

from __future__ import annotations

import logging
import math
import threading
from collections.abc import Callable, Collection, Sequence
from datetime import UTC, datetime
from typing import Any, Final

from deploy.tools.errors import GatewayError
from gateway import registry

log = logging.getLogger("triton_gateway.sync")

LEAST_S: Final = 10.0
FAILING_S: Final = 60.0
"""The report of a model that fails is repeated: an old one does not count."""
MOST_S: Final = 3600.0

Told = Sequence[registry.reports.ModelReport]


class StatusBoard:
    """What is said of every model, by endpoint and name. ``wall`` returns Unix seconds."""

    def __init__(self, wall: Callable[[], float]) -> None:
        self._wall = wall
        self._models: dict[tuple[str, str], tuple[registry.reports.ModelReport, str, str]] = {}
        """What is reported, what is being done about it, and since when both hold."""
        self._lock = threading.Lock()

    def set(self, model: registry.reports.ModelReport, doing: str = "") -> bool:
        """Record what is known of one model, and what is being done about it. Return False if nothing changed."""
        key = (model.url, model.name)
        with self._lock:
            old, was_doing, _ = self._models.get(key, (None, "", ""))
            if (model, doing) == (old, was_doing):
                return False
            self._models[key] = model, doing, iso(self._wall())
        if model.state in ("loaded", "failed", "refused") and (old is None or old.state != model.state):
            log.info("endpoint %s model %s is %s%s", model.url, model.name or model.model, model.state,
                     f": {model.reason}" if model.reason else "")  # fmt: skip
        return True

    def keep_only(self, current: Collection[tuple[str, str]]) -> None:
        """Forget every other (endpoint, name)."""
        with self._lock:
            self._models = {key: model for key, model in self._models.items() if key in current}

    def models(self) -> list[registry.reports.ModelReport]:
        """Return what is reported of each model."""
        with self._lock:
            return [model for _, (model, _, _) in sorted(self._models.items())]

    def shown(self) -> list[dict[str, Any]]:
        """Return every model in its published form."""
        with self._lock:
            models = [one for _, one in sorted(self._models.items())]
        return [
            {"url": m.url, "name": m.name, "model": m.model, "state": m.state, "reason": m.reason, "doing": doing,
             "since": since} for m, doing, since in models
        ]  # fmt: skip


class Reporter:
    """Reports with ``send``. ``clock``: seconds. One thread at a time.

    A registry that is away is asked again ten seconds later.
    """

    def __init__(self, send: Callable[[Told], None], *, clock: Callable[[], float]) -> None:
        self._send = send
        self._clock = clock
        self._sent: Told | None = None
        self._tried_at = -math.inf
        self._said = ""

    def is_due(self, told: Told) -> bool:
        """Return whether ``told`` should be reported now."""
        since = self._clock() - self._tried_at
        most = FAILING_S if any(one.reason for one in told) else MOST_S
        return since >= most or (since >= LEAST_S and told != self._sent)

    def write(self, told: Told) -> None:
        """Report ``told``. Never raises for a registry that refuses or is away."""
        self._tried_at = self._clock()
        try:
            self._send(told)
        except GatewayError as error:
            if error.message != self._said:
                log.warning("the state of this Triton cannot be reported: %s", error.message)
            self._said = error.message
            return
        self._sent, self._said = told, ""


def iso(seconds: float) -> str:
    """Return Unix seconds as text, in UTC."""
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="seconds")

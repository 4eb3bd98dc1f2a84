"""What model sync tells of its Triton: its status, and a report beside the serving Task.

Gateways and the controller read the report (``gateway.registry.reports``): it is sent on change, at most every ten
seconds, every minute while a model fails, and else hourly.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterable, Sequence
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
    """What is said of every model, and since when. ``wall`` returns Unix seconds.

    It is replaced as a whole, so that other threads may read it.
    """

    def __init__(self, wall: Callable[[], float]) -> None:
        self._wall = wall
        self._models: dict[tuple[str, str], tuple[registry.reports.ModelReport, str, str]] = {}
        """By endpoint and name: what is reported, what is being done about it, and since when both hold."""

    def replace(self, models: Iterable[tuple[registry.reports.ModelReport, str]]) -> None:
        """Take what is known of each model, and what is being done about it."""
        found, now = {}, iso(self._wall())
        for model, doing in models:
            old, was_doing, since = self._models.get((model.url, model.name), (None, "", ""))
            found[model.url, model.name] = model, doing, since if (model, doing) == (old, was_doing) else now
            if model.state in ("loaded", "failed", "refused") and (old is None or old.state != model.state):
                log.info("endpoint %s model %s is %s%s", model.url, model.name or model.model, model.state,
                         f": {model.reason}" if model.reason else "")  # fmt: skip
        self._models = found

    def models(self) -> list[registry.reports.ModelReport]:
        """Return what is reported of each model."""
        return [model for _, (model, _, _) in sorted(self._models.items())]

    def shown(self) -> list[dict[str, Any]]:
        """Return every model in its published form."""
        return [
            {"url": m.url, "name": m.name, "model": m.model, "state": m.state, "reason": m.reason, "doing": doing,
             "since": since} for _, (m, doing, since) in sorted(self._models.items())
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

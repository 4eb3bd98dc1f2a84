"""What model sync tells of its Triton: a file for this machine, and a report beside the serving Task for all others.

``up`` and people read the file, which is written as a whole, and only if something changed. Gateways
and the controller read the report (``gateway.registry.reports``): it is sent on change, at most every ten seconds,
every minute while a model fails, and else hourly.
"""

from __future__ import annotations

import json
import logging
import math
import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final, Literal

from deploy.tools.errors import GatewayError
from deploy.tools.folders import replace_file

log = logging.getLogger("triton_gateway.sync")

LEAST_S: Final = 10.0
FAILING_S: Final = 60.0
"""The report of a model that fails is repeated: an old one does not count."""
MOST_S: Final = 3600.0
_PHASES: Final = {"ready": "loaded", "cold": "loaded", "leaving": "retiring"}

Rows = Sequence[Mapping[str, Any]]
State = Literal["pending", "downloading", "loading", "ready", "failed", "leaving", "cold"]


@dataclass(frozen=True, slots=True)
class ModelStatus:
    """One endpoint's model as published. ``since`` is when this state began."""

    url: str
    name: str
    model_id: str
    state: State
    reason: str = ""
    since: str = ""
    is_final: bool = False
    """Of a failed model: it would fail on every Triton. False if its files could not be fetched."""


class StatusBoard:
    """The state of every model, by endpoint and name. ``wall`` returns Unix seconds."""

    def __init__(self, path: Path, wall: Callable[[], float]) -> None:
        self._path = path
        self._wall = wall
        self._models: dict[tuple[str, str], ModelStatus] = {}
        self._lock = threading.Lock()
        self._published = ""

    def set(self, status: ModelStatus) -> bool:
        """Record one model's state. Return False if it did not change."""
        key = (status.url, status.name)
        with self._lock:
            old = self._models.get(key)
            if old is not None and replace(old, since="") == status:
                return False
            self._models[key] = replace(status, since=iso(self._wall()))
        if status.state in ("ready", "failed") and (old is None or old.state != status.state):
            log.info("endpoint %s model %s is %s%s", status.url, status.name or status.model_id, status.state,
                     f": {status.reason}" if status.reason else "")  # fmt: skip
        return True

    def keep_only(self, current: Collection[tuple[str, str]]) -> None:
        """Forget every other (endpoint, name)."""
        with self._lock:
            self._models = {key: status for key, status in self._models.items() if key in current}

    def models(self) -> list[dict[str, Any]]:
        """Return every model's state in its published form."""
        with self._lock:
            models = sorted(self._models.values(), key=lambda s: (s.url, s.name))
        return [
            {"name": m.name, "endpoint": m.url, "model_id": m.model_id, "state": m.state, "reason": m.reason,
             "is_final": m.is_final, "since": m.since} for m in models
        ]  # fmt: skip

    def publish(self, status: Mapping[str, Any]) -> None:
        """Write the file if its content changed. A failure to write is logged."""
        text = json.dumps(status, indent=1)
        if text == self._published:
            return
        try:
            replace_file(self._path, text, mode=0o644)
        except OSError as error:
            log.warning("cannot write %s: %s", self._path, error)
            return
        self._published = text


class Reporter:
    """Reports with ``send``, which gets the fields of ``ModelReport``. ``clock``: seconds. One thread at a time.

    A registry that is away is asked again ten seconds later.
    """

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


def iso(seconds: float) -> str:
    """Return Unix seconds as text, in UTC."""
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="seconds")

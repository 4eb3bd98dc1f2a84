"""Model sync's published status: one file that gateways' pages, ``status``, ``doctor`` and ``up`` read.

It is written as a whole, and only if something changed. Thread-safe.
"""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

from deploy.tools.folders import replace_file

log = logging.getLogger("triton_gateway.sync")

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


def read_status(path: Path) -> dict[str, Any] | None:
    """Return the published status; None if no model sync has written one."""
    try:
        status = json.loads(path.read_text())
    except (OSError, ValueError):
        return None
    return status if isinstance(status, dict) else None


def iso(seconds: float) -> str:
    """Return Unix seconds as text, in UTC."""
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="seconds")

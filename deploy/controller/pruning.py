"""Removes records that nothing needs any more: what every gateway reads must not grow with each model ever made.

Contents stay for models that are served or numbered. Rollouts, requests, objectives and shadows stay for an hour after
their endpoint has gone, and a default for some seconds after the last of its versions: tools remove and add in two
steps.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any, Final

from deploy.controller.wanted import Wanted
from gateway import spec, version_numbers
from gateway.registry import Kind
from gateway.spec import ServingTask

UNUSED_S: Final = 3600.0
"""Seconds after which a record that nothing names is unused: its writer's clock may differ, or the Task be behind."""
LOAD_REQUESTS_S: Final = 86400.0
"""Seconds after which a gateway's request to load a model is over: model sync reads it within seconds."""
_OF_ENDPOINTS: Final[Mapping[Kind, float]] = {
    "default_version": 15.0,
    **dict.fromkeys(("rollout", "rollout_request", "objective", "shadow"), UNUSED_S),
}
"""Kinds of records that are about endpoints, versions or routes → how long they stay after those."""


class Pruner:
    """Called with the serving Task after every look, on one thread. ``wall``: Unix seconds."""

    def __init__(self, *, wall: Callable[[], float] = time.time) -> None:
        self._wall = wall
        self._gone: dict[str, float] = {}
        """Names of records whose endpoint has gone → since when."""

    def __call__(self, task: ServingTask) -> Wanted | None:
        """Return what is unused."""
        serving = spec.decode(task)
        if task.problem or serving.unreadable:
            return None  # the Task cannot be read completely
        unused = self._abandoned(task, serving)
        unused["content_hash"] = _unused_hashes(task, serving, self._wall() - UNUSED_S)
        asked, until = spec.records_of(task, "load_request"), self._wall() - LOAD_REQUESTS_S
        unused["load_request"] = [model for model, one in asked.items() if _time(one) < until]
        return Wanted(gone=unused)

    def _abandoned(self, task: ServingTask, serving: spec.ServingSpec) -> dict[Kind, list[str]]:
        """Return the keys of records about what has been gone for long enough, by kind."""
        faulty = {word for fault in serving.faults for word in fault.subject.split()[1:]}
        faulty |= {url.rpartition("/")[0] for url in faulty}
        there = {*serving.endpoints, *serving.canaries, *serving.monitoring, *faulty}
        there |= {one.endpoint for one in serving.endpoints.values()}
        found = {
            kind: [k for k in spec.records_of(task, kind) if _named(kind, k) not in there] for kind in _OF_ENDPOINTS
        }
        now, before = self._wall(), self._gone
        self._gone = {key: before.get(key, now) for keys in found.values() for key in keys}
        return {kind: [k for k in keys if now - self._gone[k] >= _OF_ENDPOINTS[kind]] for kind, keys in found.items()}


def _named(kind: Kind, key: str) -> str:
    """Return what a record is about; the key of a default begins with which of the two it is."""
    return (key.partition(" ")[2] if kind == "default_version" else key).strip("/")


def _unused_hashes(task: ServingTask, serving: spec.ServingSpec, before: float) -> list[str]:
    numbered = version_numbers.decode(spec.records_of(task, version_numbers.KIND))
    named = {*serving.model_ids, *(model for numbers in numbered.values() for model in numbers.models.values())}
    known = spec.records_of(task, spec.CONTENT_HASH)
    return [model_id for model_id, value in known.items() if model_id not in named and _time(value) < before]


def _time(value: Mapping[str, Any]) -> float:
    at = value.get("at")
    return float(at) if isinstance(at, int | float) else 0.0

"""Removes records that nothing needs any more: what every gateway reads must not grow with each model ever made.

Contents stay for models that are served or numbered. Marks stay for the decisions that they are about.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Mapping
from typing import Any, Final

from deploy.controller.registry import ServingTask, Store, spec, version_numbers
from deploy.tools.errors import GatewayError

log = logging.getLogger("triton_gateway.controller")

EVERY_S: Final = 600.0
UNUSED_S: Final = 3600.0
"""Seconds after which a record that nothing names is unused: its writer's clock may differ, or the Task be behind."""


class Pruner:
    """Called with the serving Task after every look, on one thread. ``clock``: seconds; ``wall``: Unix seconds."""

    def __init__(self, store: Store, *, clock: Callable[[], float], wall: Callable[[], float]) -> None:
        self._store = store
        self._clock = clock
        self._wall = wall
        self._due = -math.inf

    def __call__(self, task: ServingTask) -> bool:
        """Remove what is unused, every ten minutes. Return True if something was."""
        if self._clock() < self._due:
            return False
        self._due = self._clock() + EVERY_S
        serving = spec.decode(task)
        if task.problem or any(fault.subject.startswith("section ") for fault in serving.faults):
            return False  # the Task cannot be read completely
        before = self._wall() - UNUSED_S
        hashes, marks = _unused_hashes(task, serving, before), _unused_marks(task)
        try:
            self._store.ledger.remove("content_hash", hashes)
            self._store.ledger.remove("decision_mark", marks)
        except GatewayError as error:
            log.warning("unused records cannot be removed: %s", error.message)
            return False
        return bool(hashes or marks)


def _unused_hashes(task: ServingTask, serving: spec.ServingSpec, before: float) -> list[str]:
    numbered = version_numbers.decode(spec.records_of(task, version_numbers.KIND))
    named = {*serving.model_ids, *(model for numbers in numbered.values() for model in numbers.models.values())}
    known = spec.records_of(task, spec.CONTENT_HASH)
    return [model_id for model_id, value in known.items() if model_id not in named and _time(value) < before]


def _unused_marks(task: ServingTask) -> list[str]:
    current = {value.get("revision") for value in spec.records_of(task, "decision").values()}
    return [key for key in spec.records_of(task, "decision_mark") if key.partition("/")[0] not in current]


def _time(value: Mapping[str, Any]) -> float:
    at = value.get("at")
    return float(at) if isinstance(at, int | float) else 0.0

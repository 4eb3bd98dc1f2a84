"""What each model sync reports of its Triton: the phase of each model, and why it is not loaded. Pure.

One record per model sync (``Registry.reports``), in a companion Task that is no part of ``Registry.marker``: a report
wakes nobody. Model sync writes its own, on change and hourly; the controller reads all, and removes what is silent.

Public: ``deploy`` may import it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any, Final, Literal, get_args

from gateway.registry.ledger import Record, Records

RECENT_S: Final = 180.0
"""Seconds for which a report of a failed model counts: model sync repeats it every minute while a model fails."""
SILENT_S: Final = 86400.0
"""Seconds after which a report counts as that of a Triton that is gone."""
_MAX_REASON: Final = 300

Phase = Literal["pending", "loaded", "retiring"]
"""``loaded`` also of a model that was unloaded because nobody asks for it: the next request loads it."""


@dataclass(frozen=True, slots=True)
class ModelReport:
    """One model of one Triton. ``is_final``: a retry fails again until the model or its endpoint is changed."""

    url: str
    model: str
    name: str
    phase: Phase
    reason: str = ""
    is_final: bool = False
    sha256: str = ""
    """Of the model's file as it was downloaded last; empty if it was not."""
    parts: str = ""
    """Of what gateways read of a folder; empty for a single file."""

    @property
    def state(self) -> str:
        """``failed`` or ``refused`` (finally), else its phase: the words of gateways' status."""
        return ("refused" if self.is_final else "failed") if self.reason else self.phase


@dataclass(frozen=True, slots=True)
class Missing:
    """Why a model is missing, for people; empty if no model sync says. ``is_final``: on every Triton, for good.

    ``at``: when the last of these reports was written (Unix seconds of its writer); 0: there is none.
    """

    reason: str = ""
    is_final: bool = False
    at: float = 0.0


def record(sync: str, told: Iterable[ModelReport], *, at: float) -> Record:
    """Return the record of the model sync called ``sync``; ``at`` in Unix seconds."""
    rows = [{**asdict(one), "reason": one.reason[:_MAX_REASON]} for one in told]
    return Record("report", sync, {"at": round(at), "models": rows})


def read(records: Records) -> dict[str, tuple[ModelReport, ...]]:
    """Return the reports by model sync; what cannot be read is skipped."""
    found = {}
    for sync, value in records.get("report", {}).items():
        with contextlib.suppress(KeyError, TypeError, ValueError):
            found[sync] = tuple(_model(row) for row in value["models"])
    return found


def why_missing(records: Records, model: str, *, now: float) -> Missing:
    """Return why Tritons lack the model of this name; ``now`` in Unix seconds.

    It is refused if every Triton that reports it refuses it: one that is newly started may be able to load it.
    """
    recent = {"report": {
        sync: value for sync, value in records.get("report", {}).items() if abs(now - _time(value)) < RECENT_S
    }}  # fmt: skip
    found = {sync: one for sync, models in read(recent).items() for one in models if one.name == model}
    told, failed = [*found.values()], [one for one in found.values() if one.reason]
    at = max((_time(recent["report"][sync]) for sync in found), default=0.0)
    if not failed:
        return Missing(at=at)
    is_final = len(failed) == len(told) and all(one.is_final for one in failed)
    what = "model sync refuses the model" if is_final else "model sync cannot load the model yet"
    where = f" ({len(failed)} of {len(told)} Tritons)" if len(told) > 1 else ""
    return Missing(f"{what}: {failed[0].reason}{where}", is_final, at)


def silent(records: Records, *, now: float) -> list[str]:
    """Return the model syncs whose report is older than a day."""
    return [sync for sync, value in records.get("report", {}).items() if not now - _time(value) < SILENT_S]


def _model(stored: Mapping[str, Any]) -> ModelReport:
    phase = stored["phase"]
    if phase not in get_args(Phase):
        raise ValueError(phase)
    return ModelReport(
        str(stored["url"]), str(stored["model"]), str(stored["name"]), phase, str(stored.get("reason", "")),
        bool(stored.get("is_final")), str(stored.get("sha256", "")), str(stored.get("parts", "")),
    )  # fmt: skip


def _time(value: Mapping[str, Any]) -> float:
    at = value.get("at")
    return float(at) if isinstance(at, int | float) else 0.0

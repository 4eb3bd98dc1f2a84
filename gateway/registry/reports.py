"""What each model sync reports of its Triton: the phase of each model, and why it is not loaded. Pure.

One record per model sync (``Registry.reports``), in a companion Task that is no part of ``Registry.marker``: a report
wakes nobody. Model sync writes its own, on change and hourly; the controller reads all, and removes what is silent.

Public: ``deploy`` may import it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Final, Literal

from pydantic import TypeAdapter, ValidationError

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
    return {sync: report.models for sync, report in _reports(records).items()}


def why_missing(records: Records, model: str, *, now: float) -> Missing:
    """Return why Tritons lack the model of this name; ``now`` in Unix seconds.

    It is refused if every Triton that reports it refuses it: one that is newly started may be able to load it.
    """
    told = [
        (report.at, one)
        for report in _reports(records).values() if abs(now - report.at) < RECENT_S
        for one in report.models if one.name == model
    ]  # fmt: skip
    failed = [one for _, one in told if one.reason]
    at = max((at for at, _ in told), default=0.0)
    if not failed:
        return Missing(at=at)
    is_final = len(failed) == len(told) and all(one.is_final for one in failed)
    what = "model sync refuses the model" if is_final else "model sync cannot load the model yet"
    where = f" ({len(failed)} of {len(told)} Tritons)" if len(told) > 1 else ""
    return Missing(f"{what}: {failed[0].reason}{where}", is_final, at)


def silent(records: Records, *, now: float) -> list[str]:
    """Return the model syncs whose report is older than a day, or cannot be read."""
    known = _reports(records)
    return [sync for sync in records.get("report", {}) if sync not in known or not now - known[sync].at < SILENT_S]


@dataclass(frozen=True, slots=True)
class _Report:
    at: float
    models: tuple[ModelReport, ...]


_REPORT: Final = TypeAdapter(_Report)


def _reports(records: Records) -> dict[str, _Report]:
    found = {}
    for sync, value in records.get("report", {}).items():
        with contextlib.suppress(ValidationError):
            found[sync] = _REPORT.validate_python(value)
    return found

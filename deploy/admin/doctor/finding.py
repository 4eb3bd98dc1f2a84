"""One thing that was looked at, and how a list of them is shown."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any, Literal

State = Literal["ok", "note", "missing"]

_MARKS = {"ok": "ok     ", "note": "note   ", "missing": "MISSING"}


@dataclass(frozen=True, slots=True)
class Finding:
    """``missing`` keeps something from working, a ``note`` limits something that was not asked for."""

    subject: str
    state: State
    detail: str
    remedy: str = ""


def lines(findings: Iterable[Finding]) -> list[str]:
    """Return what a person reads; the remedy stands below what it is for."""
    shown = []
    for each in findings:
        shown.append(f"{_MARKS[each.state]}  {each.subject}: {each.detail}")
        if each.remedy and each.state != "ok":
            shown.append(f"         → {each.remedy}")
    return shown


def summary(findings: Iterable[Finding]) -> str:
    """Return the last line."""
    missing = [each for each in findings if each.state == "missing"]
    return f"{len(missing)} missing" if missing else "nothing is missing"


def document(findings: Iterable[Finding]) -> list[dict[str, Any]]:
    """Return the findings for machines."""
    return [asdict(each) for each in findings]

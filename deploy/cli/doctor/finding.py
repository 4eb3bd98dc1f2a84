"""The result of one check, and how a list of results is shown."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any, Literal

State = Literal["ok", "note", "missing"]

_MARKS = {"ok": "ok     ", "note": "note   ", "missing": "MISSING"}


@dataclass(frozen=True, slots=True)
class Finding:
    """The result of one check. ``missing``: something does not work; ``note``: an optional part is limited."""

    subject: str
    state: State
    detail: str
    remedy: str = ""


def lines(findings: Iterable[Finding]) -> list[str]:
    """Return the findings as text lines, each with its remedy below it."""
    shown = []
    for each in findings:
        shown.append(f"{_MARKS[each.state]}  {each.subject}: {each.detail}")
        if each.remedy and each.state != "ok":
            shown.append(f"         → {each.remedy}")
    return shown


def summary(findings: Iterable[Finding]) -> str:
    """Return the last line of the text: the number of findings that are ``missing``."""
    missing = [each for each in findings if each.state == "missing"]
    return f"{len(missing)} missing" if missing else "nothing is missing"


def document(findings: Iterable[Finding]) -> list[dict[str, Any]]:
    """Return the findings as JSON objects."""
    return [asdict(one) for one in findings]

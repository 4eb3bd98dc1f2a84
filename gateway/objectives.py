"""What an endpoint promises: how many of its requests are answered, and how many of its answers come within a time.

Pure. The serving Task has the parts as texts (``spec.ServingSpec.objectives``): an option of the endpoint's versions,
or what somebody recorded with ``triton-gateway objective``. Parts that nobody has stated are the setting's. The gateway
counts by it (``metrics.observer``), rules and pages say what is left of what it allows.

Public: ``deploy`` may import it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from gateway.settings import parse_duration, parse_share

BUDGET_S: Final = 30 * 86400.0
"""What an objective allows is counted over this time."""
LEAST_BAD: Final = 10
"""Bad requests below which nobody is alarmed: one failure at night is no outage."""
_CLOCK: Final = re.compile(r"(\d+):(\d\d):(\d\d(?:\.\d+)?)")


@dataclass(frozen=True, slots=True)
class Objective:
    """``availability`` of the requests are answered, and ``share`` of the answers come within ``within`` seconds.

    0 for an availability or a time that is not promised.
    """

    availability: float = 0.999
    within: float = 0.0
    share: float = 0.99

    @property
    def le(self) -> str:
        """The time as a label's value: ``0.3``; empty for none."""
        return f"{self.within:.6g}" if self.within else ""


def read(stated: Mapping[str, str], default: Objective) -> Objective:
    """Return the objective of an endpoint for which these parts are ``stated`` (``spec.OBJECTIVE``).

    Raises ``ValueError``, which names the part and says how it is written.
    """
    found: dict[str, float] = {}
    for name, (field, parse) in _PARTS.items():
        if name in stated:
            try:
                found[field] = parse(stated[name])
            except ValueError as error:
                raise ValueError(f"{name}: {error}") from error
    return replace(default, **found)


def _time(text: str) -> float:
    text = text.strip()
    # What the stock CLI makes of `300ms`, if it is the last of its options.
    clock = _CLOCK.fullmatch(text)
    if clock:
        seconds = 3600 * int(clock[1]) + 60 * int(clock[2]) + float(clock[3])
    else:
        seconds = 0.0 if text == "off" else parse_duration(text)
    return float(f"{seconds:.6g}")


def _kept_share(text: str) -> float:
    share = parse_share(text)
    if not share:
        raise ValueError("a share of no answers promises nothing: write latency=off instead")
    return share


_PARTS: Final[Mapping[str, tuple[str, Callable[[str], float]]]] = {
    "availability": ("availability", parse_share),
    "latency": ("within", _time),
    "latency_share": ("share", _kept_share),
}
"""The field of ``Objective`` that each part (``spec.OBJECTIVE``) is, and what reads it."""


def in_words(one: Objective) -> str:
    """Return an objective in words."""
    parts = []
    if one.availability:
        parts.append(described({"objective": "availability", "target": one.availability}))
    if one.within:
        parts.append(described({"objective": "latency", "target": one.share, "within": one.within}))
    return ", ".join(parts) or "nothing is promised"


def described(row: Mapping[str, Any]) -> str:
    """Return in words what is promised by a row of ``/v1/status`` (``metrics.live.Budgets``)."""
    share = shown(row["target"])
    if row["objective"] == "availability":
        return f"{share} answered"
    return f"{share} of the answers within {shown_time(row['within'])}"


def left(row: Mapping[str, Any]) -> str:
    """Return in words what is left of what such a row allows."""
    if row["left"] is None:
        return "no request yet"
    seconds = row["seconds"]
    over = "30 days" if seconds >= BUDGET_S else f"{_age(seconds)} of 30 days"
    many = f"{row['bad']:,.0f} of {row['requests']:,.0f} in {over}"
    if row["left"] > 0:
        return f"{min(row['left'], 1):.0%} of the budget left ({many})"
    return f"budget spent {1 - row['left']:,.1f} times ({many})"


def is_spent(row: Mapping[str, Any]) -> bool:
    """Whether nothing is left, of so many requests that it means something."""
    return row["left"] is not None and row["left"] <= 0 and row["bad"] >= LEAST_BAD


def _age(seconds: float) -> str:
    for unit, size in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= size:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds:.0f} s"


def shown(share: float) -> str:
    """Return a share as people write it: ``99.9%``."""
    return f"{100 * share:.6g}%"


def shown_time(seconds: float) -> str:
    """Return a time as people write it: ``300 ms``, ``2 s``."""
    return f"{1000 * seconds:.6g} ms" if seconds < 1 else f"{seconds:.6g} s"

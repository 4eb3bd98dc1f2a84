"""Objectives of an endpoint: the share of requests that are answered, and of answers that come within a time.

Pure. The serving Task holds the parts as texts (``spec.ServingSpec.objectives``): options of the endpoint's versions,
or records written by ``triton-gateway objective``. ``metrics.observer`` counts by objectives; rules and pages show what
is left of the error budget.

Public: ``deploy`` may import it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from gateway.settings import parse_duration

BUDGET_S: Final = 30 * 86400.0
"""The period of an error budget."""
LEAST_BAD: Final = 10
"""Bad requests from which a spent budget counts: a single failure at night is no outage."""
_CLOCK: Final = re.compile(r"(\d+):(\d\d):(\d\d(?:\.\d+)?)")


@dataclass(frozen=True, slots=True)
class Objective:
    """``availability`` of the requests are answered, and ``share`` of the answers come within ``within`` seconds.

    An availability or a time of 0 means that there is no such objective.
    """

    availability: float = 0.999
    within: float = 0.0
    share: float = 0.99

    @property
    def le(self) -> str:
        """The time as a label value: ``0.3``; empty without one."""
        return f"{self.within:.6g}" if self.within else ""


def read(stated: Mapping[str, str]) -> Objective:
    """Return the objective of an endpoint: the ``stated`` parts (``spec.OBJECTIVE``), completed by the defaults.

    Raises ``ValueError`` with the name of the part and how to write it.
    """
    found: dict[str, float] = {}
    for name, (field, parse) in _PARTS.items():
        if name in stated:
            try:
                found[field] = parse(stated[name])
            except ValueError as error:
                raise ValueError(f"{name}: {error}") from error
    return Objective(**found)


def parse_share(text: str) -> float:
    """Parse ``"99.9%"``, ``"99.9"`` or ``"0.999"`` to a share, ``"off"`` to 0.

    Raises ``ValueError`` for anything else, for less than 50 %, and for 100 %, which no endpoint can keep.
    """
    text = text.strip()
    if text in ("off", "0", "0.0"):
        return 0.0
    try:
        number = float(text.removesuffix("%"))
    except ValueError:
        raise ValueError(f"{text!r} is not a share; write 99.9% or off") from None
    share = round(number / 100 if text.endswith("%") or number > 1 else number, 9)
    if not 0.5 <= share < 1:
        raise ValueError(f"{text!r} cannot be promised: write a share from 50% up to below 100%, or off")
    return share


def _time(text: str) -> float:
    text = text.strip()
    # The form into which the stock CLI converts `300ms` if it is the last option.
    clock = _CLOCK.fullmatch(text)
    if clock:
        seconds = 3600 * int(clock[1]) + 60 * int(clock[2]) + float(clock[3])
    else:
        seconds = 0.0 if text == "off" else parse_duration(text)
    return float(f"{seconds:.6g}")


def _kept_share(text: str) -> float:
    share = parse_share(text)
    if not share:
        raise ValueError("a share of 0 is no objective: write latency=off instead")
    return share


_PARTS: Final[Mapping[str, tuple[str, Callable[[str], float]]]] = {
    "availability": ("availability", parse_share),
    "latency": ("within", _time),
    "latency_share": ("share", _kept_share),
}
"""For each part (``spec.OBJECTIVE``), the field of ``Objective`` and its parser."""


def in_words(one: Objective) -> str:
    """Return an objective as text for people."""
    parts = []
    if one.availability:
        parts.append(described({"objective": "availability", "target": one.availability}))
    if one.within:
        parts.append(described({"objective": "latency", "target": one.share, "within": one.within}))
    return ", ".join(parts) or "nothing is promised"


def described(row: Mapping[str, Any]) -> str:
    """Return the objective of a row of ``/v1/status`` (``metrics.live.Budgets``) as text for people."""
    share = shown(row["target"])
    if row["objective"] == "availability":
        return f"{share} answered"
    return f"{share} of the answers within {shown_time(row['within'])}"


def left(row: Mapping[str, Any]) -> str:
    """Return the rest of such a row's error budget as text for people."""
    if row["left"] is None:
        return "no request yet"
    seconds = row["seconds"]
    over = "30 days" if seconds >= BUDGET_S else f"{_age(seconds)} of 30 days"
    many = f"{row['bad']:,.0f} of {row['requests']:,.0f} in {over}"
    if row["left"] > 0:
        return f"{min(row['left'], 1):.0%} of the budget left ({many})"
    return f"budget spent {1 - row['left']:,.1f} times ({many})"


def is_spent(row: Mapping[str, Any]) -> bool:
    """Whether the budget is spent, by enough bad requests to matter."""
    return row["left"] is not None and row["left"] <= 0 and row["bad"] >= LEAST_BAD


def _age(seconds: float) -> str:
    for unit, size in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= size:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds:.0f} s"


def shown(share: float) -> str:
    """Return a share for people: ``99.9%``."""
    return f"{100 * share:.6g}%"


def shown_time(seconds: float) -> str:
    """Return a time for people: ``300 ms``, ``2 s``."""
    return f"{1000 * seconds:.6g} ms" if seconds < 1 else f"{seconds:.6g} s"

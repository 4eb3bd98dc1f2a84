"""Objectives of an endpoint: the share of requests that are answered, and of answers that come within a time.

Pure. Records (kind ``spec.OBJECTIVES``) hold the parts as texts, as ``triton-gateway objective`` writes them.
``metrics.observer`` counts by objectives; rules record what is left of the error budget.

Public: ``deploy`` may import it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from gateway.settings import parse_duration


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
    """Return the objective of an endpoint: the ``stated`` parts, completed by the defaults.

    Raises ``ValueError`` with the name of the part and how to write it.
    """
    found: dict[str, float] = {}
    for name, (field, parse) in PARTS.items():
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
    return 0.0 if text == "off" else float(f"{parse_duration(text):.6g}")


def _kept_share(text: str) -> float:
    share = parse_share(text)
    if not share:
        raise ValueError("a share of 0 is no objective: write latency=off instead")
    return share


PARTS: Final[Mapping[str, tuple[str, Callable[[str], float]]]] = {
    "availability": ("availability", parse_share),
    "latency": ("within", _time),
    "latency_share": ("share", _kept_share),
}
"""For each part, the field of ``Objective`` and its parser."""


def parts(stored: Mapping[str, Any]) -> dict[str, str]:
    """Return the stated parts of an endpoint's record, as texts."""
    return {name: str(stored[name]) for name in PARTS if stored.get(name)}


def in_words(one: Objective) -> str:
    """Return an objective as text for people."""
    parts = []
    if one.availability:
        parts.append(f"{_percent(one.availability)} answered")
    if one.within:
        parts.append(f"{_percent(one.share)} of the answers within {_time_in_words(one.within)}")
    return ", ".join(parts) or "nothing is promised"


def _percent(share: float) -> str:
    return f"{100 * share:.6g}%"


def _time_in_words(seconds: float) -> str:
    return f"{1000 * seconds:.6g} ms" if seconds < 1 else f"{seconds:.6g} s"

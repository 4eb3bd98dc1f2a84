"""What was decided about a route's weights, and whether what the serving Task says now undoes it. Pure.

The stock CLI reads the serving Task, works, and writes all of it back: weights that ``triton-gateway canary`` wrote
meanwhile, a finished rollback among them, are then what they were before. Every decision is therefore recorded beside
the Task (``registry/ledger``) with the weights that it replaced. Weights in the Task that a decision has replaced are
taken for such an old copy, and the decision stays in force; any other weights are somebody's will, and count.

That a person chose the very weights that were replaced cannot be told apart by looking. So they are put back once: a
mark then says that they are meant if they appear again (``deploy/rollout/keeper`` writes it). What ``triton-gateway
canary`` sets is a decision itself and counts at once.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal

DECISION: Final = "decision"
MARK: Final = "decision_mark"
"""Kinds of records."""

Verdict = Literal["agrees", "reverted", "changed"]

_RETIRED: Final = "retired"
_MAX_REPLACED: Final = 30
FORGOTTEN_S: Final = 3600.0
"""Nobody's call of the stock CLI takes this long: weights that were replaced before are meant when they appear."""


@dataclass(frozen=True, slots=True)
class Decision:
    """Weights that were decided for the route ``endpoint``: in the order of ``urls``, at ``at`` (Unix seconds)."""

    endpoint: str
    revision: str
    urls: tuple[str, ...]
    weights: tuple[float, ...]
    at: float
    by: str = ""
    why: str = ""
    replaced: Mapping[str, float] = field(default_factory=dict)
    """Weights that the Task had before, as ``described``, and when each of them was replaced."""

    @property
    def text(self) -> str:
        """The weights as ``described``."""
        return described(self.urls, self.weights)

    def to_json(self) -> dict[str, Any]:
        """Return the decision as it is recorded."""
        return {
            "revision": self.revision, "urls": list(self.urls), "weights": list(self.weights), "at": round(self.at, 3),
            "by": self.by, "why": self.why, "replaced": dict(self.replaced),
        }  # fmt: skip


def described(urls: Sequence[str], weights: Sequence[float], prefix: str = "") -> str:
    """Return a route's weights as they were written, ``e/2 0.1, e/1 0.9``; empty for a route that is not there.

    Order, zeros and sums stay: an old copy has them all, and another will is told from it by the smallest of them.
    """
    if prefix:
        return f"{prefix}*: " + ", ".join(f"{weight:g}" for weight in weights)
    return ", ".join(f"{url} {weight:g}" for url, weight in zip(urls, weights, strict=False))


def read(records: Mapping[str, Mapping[str, Any]]) -> dict[str, Decision]:
    """Return recorded decisions by route; what cannot be read decides nothing."""
    found = {}
    for endpoint, value in records.items():
        with contextlib.suppress(KeyError, TypeError, ValueError, AttributeError):
            found[endpoint] = Decision(
                endpoint, str(value["revision"]), tuple(str(url) for url in value["urls"]),
                tuple(float(weight) for weight in value["weights"]), float(value["at"]), str(value.get("by", "")),
                str(value.get("why", "")), {str(k): float(v) for k, v in value.get("replaced", {}).items()},
            )  # fmt: skip
    return found


def decided(
    endpoint: str, shares: Mapping[str, float], found: str, former: Decision | None, marks: Iterable[str], *,
    revision: str, now: float, by: str, why: str,
) -> Decision:  # fmt: skip
    """Return the decision that ``endpoint`` has these weights from ``now`` on.

    ``found``: the weights that the Task has. ``former``: the decision before, whose weights and what they replaced are
    replaced too, unless it was given up.
    """
    replaced: dict[str, float] = {}
    if former is not None and retired(former) not in set(marks):
        recent = {text: at for text, at in former.replaced.items() if now - at < FORGOTTEN_S}
        replaced |= {**recent, former.text: now}
    replaced[found] = now
    urls, weights = tuple(shares), tuple(float(weight) for weight in shares.values())
    replaced.pop(described(urls, weights), None)
    newest = dict(sorted(replaced.items(), key=lambda item: item[1])[-_MAX_REPLACED:])
    return Decision(endpoint, revision, urls, weights, now, by, why, newest)


def judge(
    urls: Sequence[str], weights: Sequence[float], prefix: str, decision: Decision, marks: Iterable[str]
) -> Verdict:
    """Say whether the Task's weights are those decided, an old copy of what was replaced, or another will."""
    if not prefix and _shares(urls, weights) == _shares(decision.urls, decision.weights):
        return "agrees"
    found = described(urls, weights, prefix)
    known = set(marks)
    if found not in decision.replaced or meant(decision, found) in known or retired(decision) in known:
        return "changed"
    return "reverted"


def _shares(urls: Sequence[str], weights: Sequence[float]) -> dict[str, float]:
    total = sum(weights)
    if not total > 0:  # unusable, or not a number
        return {}
    shares = {url: round(weight / total, 4) for url, weight in zip(urls, weights, strict=False)}
    return {url: share for url, share in shares.items() if share}


def meant(decision: Decision, found: str) -> str:
    """Return the key of the mark that says: these weights, though replaced, are somebody's will."""
    return f"{decision.revision}/{found}"


def retired(decision: Decision) -> str:
    """Return the key of the mark that says: somebody has chosen other weights since, this decision is over."""
    return f"{decision.revision}/{_RETIRED}"

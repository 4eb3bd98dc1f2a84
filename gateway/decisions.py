"""Decided weights of routes, and whether the serving Task's current weights revert a decision. Pure.

The stock CLI reads the serving Task, works, and writes all of it back. Weights that ``triton-gateway canary`` wrote in
between, such as those of a rollback, are then overwritten with the earlier ones. Every decision is therefore recorded
beside the Task (``registry/ledger``) with the weights that it replaced. If the Task has weights that a decision
replaced, they are taken for such an old copy, and the decision stays in force. Any other weights are a new decision,
and count.

A person may also choose the very weights that were replaced, which looks the same. So they are put back once only: a
mark (written by ``deploy/controller``) then says that they are intended if they appear again. What ``triton-gateway
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
"""No call of the stock CLI takes this long: weights that were replaced earlier than this are intended if they appear.
"""


@dataclass(frozen=True, slots=True)
class Decision:
    """Weights decided for the route ``endpoint``, in the order of ``urls``, at ``at`` (Unix seconds).

    Without ``urls``, it was decided that there is no such route.
    """

    endpoint: str
    revision: str
    urls: tuple[str, ...]
    weights: tuple[float, ...]
    at: float
    by: str = ""
    why: str = ""
    replaced: Mapping[str, float] = field(default_factory=dict)
    """The weights that the Task had before (as ``described``), and when each was replaced (Unix seconds)."""

    @property
    def text(self) -> str:
        """The weights as ``described``."""
        return described(self.urls, self.weights)

    def to_json(self) -> dict[str, Any]:
        """Return the decision's record."""
        return {
            "revision": self.revision, "urls": list(self.urls), "weights": list(self.weights), "at": round(self.at, 3),
            "by": self.by, "why": self.why, "replaced": dict(self.replaced),
        }  # fmt: skip


def described(urls: Sequence[str], weights: Sequence[float], prefix: str = "") -> str:
    """Return a route's weights as text, ``e/2 0.1, e/1 0.9``; empty for a missing route.

    Order, zeros and sums are kept: an old copy has all of them, and a small difference reveals a new decision.
    """
    if prefix:
        return f"{prefix}*: " + ", ".join(f"{weight:g}" for weight in weights)
    return ", ".join(f"{url} {weight:g}" for url, weight in zip(urls, weights, strict=False))


def read(records: Mapping[str, Mapping[str, Any]]) -> dict[str, Decision]:
    """Return recorded decisions by route; unreadable records are skipped."""
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

    ``found`` are the Task's current weights as text. ``former`` is the previous decision: its weights and what it
    replaced are replaced too, unless it was retired.
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
    """Return whether the Task's weights are the decided ones, an old copy of replaced ones, or a new decision."""
    if not prefix and _shares(urls, weights) == _shares(decision.urls, decision.weights):
        return "agrees"
    found = described(urls, weights, prefix)
    known = set(marks)
    if found not in decision.replaced or meant(decision, found) in known or retired(decision) in known:
        return "changed"
    return "reverted"


def _shares(urls: Sequence[str], weights: Sequence[float]) -> dict[str, float]:
    total = sum(weights)
    if not total > 0:  # zero, negative or NaN
        return {}
    shares = {url: round(weight / total, 4) for url, weight in zip(urls, weights, strict=False)}
    return {url: share for url, share in shares.items() if share}


def meant(decision: Decision, found: str) -> str:
    """Return the key of the mark that these weights, although replaced, are intended."""
    return f"{decision.revision}/{found}"


def retired(decision: Decision) -> str:
    """Return the key of the mark that other weights were chosen since, so the decision is over."""
    return f"{decision.revision}/{_RETIRED}"

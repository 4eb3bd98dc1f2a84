"""Compares a canary with the stable version beside it: do they get the same requests, and do they answer alike?

While a canary's weights split the requests of an endpoint, the shares of each built-in variable's values (of a number:
the share up to each bucket's bound) are compared, counted in the same time over all gateways. The routing gives values
to the canary at random: of ``t`` equal ones among ``n`` of the canary and ``m`` of stable, the canary's number is
hypergeometric. The test is that of Cochran, Mantel and Haenszel: the canary's numbers, less what chance would give it,
are added up over the looks, and so are their variances. So traffic may change from hour to hour, weights too, and
values may depend on each other. A difference is certain at five standard deviations, with ten expected on each side:
however often it is looked at, chance alone finds one beside one canary of a hundred at most.

If callers are routed by a key, all requests of a caller go to one version; a difference may then be one between
callers. It informs and decides nothing: a version may be meant to answer differently.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple

from deploy.controller.counters import Numbers
from deploy.controller.drift import references
from gateway import metrics

catalog = metrics.catalog
drift = metrics.drift
variables = metrics.variables

_MEANINGS: Final = {
    "texts": "it gets other texts than stable ({}): the traffic is split unevenly, and errors, latency and labels "
    "cannot be compared fairly",
    "tokens": "its texts have other tokens than stable's ({}): it gets other texts, or its tokenizer differs",
    "answers": "it answers differently from stable ({})",
}
_MAX_NAMED: Final = 3
_DEVIATIONS: Final = 5.0
_EXPECTED: Final = 10.0
_LEAST: Final = 20
"""Values of each side that are collected before they are compared."""
_OVER_S: Final = 3600.0
"""A canary without requests for this long is no longer compared."""
_ROUTES: Final = ("canary", "stable")
_ALL: Final = ""
"""Key of the number of all values of a variable."""


class Pair(NamedTuple):
    """A canary and the stable version beside it."""

    endpoint: str
    canary: str
    stable: str


Sentences = Mapping[str, str]
"""A sentence for each kind of difference of a pair that is certain (``texts``, ``tokens``, ``answers``)."""


class Versions:
    """Follows all canaries. Not thread-safe."""

    def __init__(self) -> None:
        self._pairs: dict[Pair, dict[str, _Variable]] = {}
        self._asked_at: dict[Pair, float] = {}
        self._cached: set[str] = set()
        """The endpoints that have answered from a response cache."""

    def update(self, now: float, grown: Numbers) -> dict[Pair, Sentences]:
        """Compare what was counted since the last time (``now`` is Unix time)."""
        self._asked_at |= dict.fromkeys(_asked(grown), now)
        self._asked_at = {pair: at for pair, at in self._asked_at.items() if now - at < _OVER_S}
        self._pairs = {pair: self._pairs.get(pair, {}) for pair in self._asked_at}
        self._cached |= {key[1] for key in grown if key[0] == catalog.CACHE.name and key[3] == "hit"}
        counted = references.variables(grown) if self._pairs else {}
        for pair, known in self._pairs.items():
            for name, kind in variables.KINDS.items():
                sides = [counted.get((pair.endpoint, version, name), {}) for version in (pair.canary, pair.stable)]
                # For an answer from the response cache only the answer's variables are counted, once per version.
                if any(sides) and (kind == "answers" or pair.endpoint not in self._cached):
                    known.setdefault(name, _Variable()).take(*map(_values, sides))
        return {pair: _found(known) for pair, known in self._pairs.items()}


def _asked(grown: Numbers) -> list[Pair]:
    """Return the canaries with requests since the last time, each with the stable version with most requests."""
    asked: dict[tuple[str, str], Counter[str]] = defaultdict(Counter)
    for (name, *labels), news in grown.items():
        if name == catalog.REQUESTS.name and labels[2] in _ROUTES:
            asked[labels[0], labels[2]][labels[1]] += round(news)
    return [
        Pair(endpoint, canary, stables.most_common(1)[0][0])
        for (endpoint, route), canaries in asked.items() if route == "canary"
        for stables in [asked.get((endpoint, "stable"))] if stables
        for canary in canaries if canary not in stables
    ]  # fmt: skip


def _values(bins: drift.Bins) -> Counter[str]:
    """Return how often each value came, of a number how often one up to each bound, and how many came in all."""
    found = Counter({_ALL: round(sum(bins.values()))})
    up_to = 0.0
    for name, count in drift.in_order(bins).items():
        if drift.ABOVE in bins and name != drift.MISSING:
            name, count = f"up to {name}", (up_to := up_to + count)
        found[name] = round(count)
    return found


@dataclass(slots=True)
class _Value:
    """One value, or one bound, of a variable. ``rarest``: the smallest of the four numbers that chance would give:
    this value and all others, of the canary and of stable.
    """

    ours: int = 0
    theirs: int = 0
    expected: float = 0.0
    variance: float = 0.0
    rarest: float = 0.0

    @property
    def deviations(self) -> float:
        """How far the canary's number is from what chance would give it, in standard deviations."""
        return (self.ours - self.expected) / math.sqrt(self.variance) if self.rarest >= _EXPECTED else 0.0


class _Variable:
    """One variable of a pair. Of two sides, the first is the canary, the second the stable version."""

    def __init__(self) -> None:
        self._waiting = Counter[str](), Counter[str]()
        self._values: dict[str, _Value] = defaultdict(_Value)

    def take(self, *sides: Counter[str]) -> None:
        """Collect new values of both sides, and compare them if there are enough."""
        for waiting, news in zip(self._waiting, sides, strict=True):
            waiting.update(news)
        (ours, n), (theirs, m) = ((side, side[_ALL]) for side in self._waiting)
        if min(n, m) < _LEAST:
            return
        both = n + m
        for name in ours.keys() | theirs.keys():
            one, here = self._values[name], ours[name] + theirs[name]
            one.ours, one.theirs = one.ours + ours[name], one.theirs + theirs[name]
            one.expected += n * here / both
            one.variance += n * m * here * (both - here) / (both * both * (both - 1))
            one.rarest += min(n, m) * min(here, both - here) / both
        ours.clear()
        theirs.clear()

    def difference(self) -> str:
        """Return in words how the sides differ, if that is certain: by what the canary never gives, else by what moved
        most.
        """
        found = {name: one for name, one in sorted(self._values.items()) if abs(one.deviations) >= _DEVIATIONS}
        if not found:
            return ""
        name, one = max(found.items(), key=lambda item: (not item[1].ours, abs(item[1].deviations)))
        of = self._values[_ALL]
        return f"{name} {one.ours / of.ours:.1%}, stable {one.theirs / of.theirs:.1%}"


def _found(known: Mapping[str, _Variable]) -> Sentences:
    told = {name: one.difference() for name, one in sorted(known.items())}
    sentences = {
        kind: meaning.format("; ".join(differ[:_MAX_NAMED]))
        for kind, meaning in _MEANINGS.items()
        if (differ := [f"{name}: {how}" for name, how in told.items() if how and variables.KINDS[name] == kind])
    }
    if "texts" in sentences and "answers" in sentences:
        sentences["answers"] += "; its texts may be the reason"
    return sentences

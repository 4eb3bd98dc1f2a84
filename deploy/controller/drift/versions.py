"""Compares canaries with the stable versions beside them, by the test that also decides rollouts (``rollouts/gate``).

While a canary's weights split the requests of an endpoint, two gates follow each pair: one compares the answers
(errors, latency, labels), the other the languages of the texts. The split is random, so both sides get the same texts.
If callers are routed by a key, all requests of a caller go to one version, and a difference may be one between callers.
What is found informs and decides nothing: a version may be meant to answer differently.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping
from typing import Final, NamedTuple

from deploy.controller.counters import Numbers
from deploy.controller.drift import references
from deploy.controller.rollouts.counts import Counts, between
from deploy.controller.rollouts.gate import Gate, listed
from gateway import metrics

catalog = metrics.catalog
variables = metrics.variables

_SHIFT: Final = 0.1
"""By how much the share of a label or language may differ."""
_OVER_S: Final = 3600.0
"""A canary without requests for this long is no longer compared."""
_ROUTES: Final = ("canary", "stable")


class Pair(NamedTuple):
    """A canary and the stable version beside it."""

    endpoint: str
    canary: str
    stable: str


Sentences = Mapping[str, str]
"""A sentence for each kind of difference of a pair that is certain (``texts``, ``answers``)."""


class Versions:
    """Follows all canaries. Not thread-safe."""

    def __init__(self) -> None:
        self._gates: dict[Pair, tuple[Gate, Gate]] = {}
        """Of each pair: the gate of its answers, and of its texts."""
        self._asked_at: dict[Pair, float] = {}
        self._cached: set[str] = set()
        """The endpoints that have answered from a response cache: the texts of such answers are not counted."""

    def update(self, now: float, grown: Numbers) -> dict[Pair, Sentences]:
        """Compare what was counted since the last time (``now`` is Unix time)."""
        self._asked_at |= dict.fromkeys(_asked(grown), now)
        self._asked_at = {pair: at for pair, at in self._asked_at.items() if now - at < _OVER_S}
        self._cached |= {key[1] for key in grown if key[0] == catalog.CACHE.name and key[3] == "hit"}
        fresh = Gate(label_shift=_SHIFT)
        self._gates = {pair: self._gates.get(pair, (fresh, fresh)) for pair in self._asked_at}
        languages = references.variables(grown) if self._gates else {}
        for pair, (answers, texts) in self._gates.items():
            sides = [(pair.endpoint, version) for version in (pair.canary, pair.stable)]
            answers = answers.after(*(between(grown, *one) for one in zip(sides, _ROUTES, strict=True)))
            if pair.endpoint not in self._cached:
                texts = texts.after(*(_languages(languages.get((*side, variables.LANGUAGE), {})) for side in sides))
            self._gates[pair] = answers, texts
        return {pair: _found(*gates) for pair, gates in self._gates.items()}


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


def _languages(bins: metrics.drift.Bins) -> Counts:
    return Counts(labels={name: round(count) for name, count in bins.items() if count})


def _found(answers: Gate, texts: Gate) -> Sentences:
    found = {}
    if texts.is_bad:
        found["texts"] = (
            f"it gets other texts than stable (languages: {listed(texts.canary)}; stable's: {listed(texts.stable)}): "
            "the traffic is split unevenly, and errors, latency and labels cannot be compared fairly"
        )
    if answers.is_bad:
        found["answers"] = answers.reason() + ("; its texts may be the reason" if found else "")
    return found

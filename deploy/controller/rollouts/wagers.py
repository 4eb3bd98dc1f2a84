"""What the gate bets on: errors, latency, labels, and answers to mirrored requests. Pure.

Each test has one or several places that share its stake. A wager says how much the bets of one place have gained in one
interval. All but mirrored answers compare two sides: how many of the canary's requests were hits (failed, were slower
than a bound, got a label), and how many of stable's.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np

from deploy.controller.rollouts.bets import likelier
from deploy.controller.rollouts.counts import Counts
from gateway.metrics.mirrored import GROUPS

ERRORS: Final = (2.0, 3.0, 6.0, 15.0, 50.0)
"""The alternatives that are bet on: how many times the permitted ones the canary's odds of a failure are."""
LATENCY: Final = (1.15, 1.4, 2.0, 4.0, 12.0)
"""The same of an answer that is slower than a bound."""
LABELS: Final = (1.1, 1.3, 1.7, 3.0, 8.0)
PAIRS: Final = (0.03, 0.1, 0.3, 0.8)
"""The shares of different answers that are bet on, as fractions of the range between the permitted one and 1."""

_IN_GROUP: Final = 0.3
"""Share of a group's answers that may differ at least: an even retrain changes more where few texts are clear."""

QUANTILES: Final = (0.5, 0.9, 0.95, 0.99)
"""Quantiles of stable's latency near which both sides are compared."""
_MAX_LABELS: Final = 8
_REST: Final = "(other values)"
_VANISHED: Final = 0.25
"""The canary may give no label less often than this part of stable's share."""
_SAMPLE: Final = 200
"""Answers of stable that are counted before the first bet on labels or latency, which needs stable's shares."""
PLACES: Final = {"errors": 1, "latency": len(QUANTILES), "labels": 2 * (_MAX_LABELS + 1), "pairs": 1, "groups": GROUPS}
"""Test → places that share its stake, used or not: what begins late adds nothing to it."""


class Wager(NamedTuple):
    """``gains``: of the logarithm of each bet. ``seen``: requests that were compared."""

    test: str
    place: str
    gains: Sequence[float]
    seen: int


@dataclass(frozen=True, slots=True)
class Bound:
    """A latency at which both sides are compared, in seconds.

    ``allowed``: the permitted ratio of the canary's odds of being slower to stable's.
    """

    seconds: float
    allowed: float


def errors(canary: Counts, stable: Counts) -> Iterator[Wager]:
    """Bet that the canary fails more often. Stable has answered every mirrored request: a failure is the canary's."""
    requests, failures = canary.requests + sum(canary.pairs), canary.failures + canary.mirror_failures
    if requests and stable.requests:
        gains = likelier(requests, failures, stable.requests, stable.failures, ERRORS)
        yield Wager("errors", "", gains, requests)


def latency(canary: Counts, stable: Counts, bounds: Iterable[Bound]) -> Iterator[Wager]:
    """Bet that the canary is slower than a bound more often; one that a side's histogram lacks is not compared."""
    n, m = canary.timed, stable.timed
    for place, at in enumerate(bounds):
        if n and m and at.seconds in canary.slower and at.seconds in stable.slower:
            hits, others = canary.slower[at.seconds], stable.slower[at.seconds]
            yield Wager("latency", str(place), likelier(n, hits, m, others, LATENCY, at.allowed), n)


def labels(canary: Counts, stable: Counts, known: Mapping[str, int], most: float) -> Iterator[Wager]:
    """Bet that the canary gives a label more often than is permitted, or more rarely.

    Requests are split at random, so both sides get the same kind of requests. The share of a label may differ by
    ``most`` (0.1: ten percentage points), and not fall below a quarter of stable's: a label that the canary never gives
    is found, however rare it is. The permitted ratio follows from stable's share so far, ``known``.
    """
    n, m, of_all = sum(canary.labels.values()), sum(stable.labels.values()), sum(known.values())
    if not n or not m or of_all < _SAMPLE:
        return
    for label in dict.fromkeys((*known, *canary.labels, *stable.labels)):
        share, hits, others = known.get(label, 0) / of_all, canary.labels.get(label, 0), stable.labels.get(label, 0)
        allowed = _odds(share + most) / _odds(max(share, 0.5 / of_all))
        yield Wager("labels", f"more {label}", likelier(n, hits, m, others, LABELS, allowed), n)
        if share:
            # The same with the sides exchanged: stable gives the label more often than the canary.
            allowed = _odds(share) / _odds(max(share - most, _VANISHED * share))
            yield Wager("labels", f"fewer {label}", likelier(m, others, n, hits, LABELS, allowed), m)


def gathered(counts: Mapping[str, int], known: Iterable[str], others: Mapping[str, int]) -> dict[str, int]:
    """Return the counts of labels: those beyond the eighth count as one. ``others``: those of the other side.

    ``known`` ones come first, then new ones, the most frequent of both sides first.
    """
    fresh = sorted({*counts, *others}, key=lambda label: (-counts.get(label, 0) - others.get(label, 0), label))
    separate = [label for label in dict.fromkeys((*known, *fresh)) if label != _REST][:_MAX_LABELS]
    found = {label: counts[label] for label in separate if counts.get(label)}
    rest = sum(counts.values()) - sum(found.values())
    return {**found, _REST: rest} if rest else found


def pairs(canary: Counts, most: float) -> Iterator[Wager]:
    """Bet that the canary's answers to mirrored requests differ from stable's more often than ``most`` (0.1: one in
    ten), or in a group of requests more often than ``most_in_group`` says.

    This finds what counts of labels cannot: a quarter of the answers flipped at random leaves every label as frequent
    as before, and a fault in one group alone is small among all answers.
    """
    yield from _different("pairs", "", *canary.pairs, most)
    for group in {**canary.agreed, **canary.differed}:
        counts = canary.agreed.get(group, 0), canary.differed.get(group, 0)
        yield from _different("groups", group, *counts, most_in_group(most))


def most_in_group(most: float) -> float:
    """Return the share of a group's answers that may differ if ``most`` of all may; 1: groups are not compared."""
    return min(1.0, max(_IN_GROUP, 2 * most))


def _different(test: str, place: str, agreed: int, differed: int, most: float) -> Iterator[Wager]:
    """Agreeing answers count as well as different ones."""
    if agreed + differed and most < 1:
        shares = [most + (1 - most) * part for part in PAIRS]
        gains = [differed * math.log(one / most) + agreed * math.log((1 - one) / (1 - most)) for one in shares]
        yield Wager(test, place, gains, agreed + differed)


def bounds(seen: Counts, slower: float) -> tuple[Bound, ...]:
    """Return the bucket bounds nearest to stable's quantiles; empty if it has answered too few requests, or all were in
    one bucket. ``slower``: the permitted ratio of latencies.
    """
    if seen.timed < _SAMPLE:
        return ()
    shares = {bound: seen.slower[bound] / seen.timed for bound in sorted(seen.slower)}
    inside = [bound for bound, share in shares.items() if 0 < share < 1]
    found = []
    for quantile in QUANTILES if inside else ():
        wanted = _log_odds(1 - quantile)
        bound = min(inside, key=lambda one: abs(_log_odds(shares[one]) - wanted))
        then = float(np.interp(bound / slower, [0.0, *shares], [1.0, *shares.values()]))  # within its bucket
        found.append(Bound(bound, math.exp(_log_odds(then) - _log_odds(shares[bound]))))
    return tuple(found)


def _odds(share: float) -> float:
    share = min(share, 0.999)
    return share / (1 - share)


def _log_odds(share: float) -> float:
    share = min(max(share, 1e-4), 1 - 1e-4)
    return math.log(share / (1 - share))

"""The accuracy of a version: measured from labels, and expected from scores while labels are missing. Pure.

``measured`` is the share of labelled answers that were right. ``expected`` estimates the accuracy of current answers:
labels say how often answers with a given score are right (calibration per bin), and scores say how many such answers
there are now. This is NannyML's CBPE. It holds while a score keeps its meaning: it sees that texts have become harder,
but not that the true labels of the same texts have changed.

Public: ``deploy`` may import it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

Z: Final = 1.959963984540054
"""Standard deviations of a 95 % interval."""
LEAST_LABELS: Final = 300
"""Labelled answers with a score that are needed for an expectation."""
_PRIOR: Final = 2.0
"""Weight of the prior of a bin, in labels; the prior comes from the other bins."""

Floats = NDArray[np.float64]


class Estimate(NamedTuple):
    """A share, its 95 % interval, and the number of answers behind it."""

    value: float
    low: float
    high: float
    answers: int


def measured(right: float, answers: float) -> Estimate | None:
    """Return the accuracy of labelled answers with Wilson's interval; None without answers."""
    if answers <= 0:
        return None
    share, z2 = right / answers, Z * Z
    middle = (share + z2 / (2 * answers)) / (1 + z2 / answers)
    half = Z / (1 + z2 / answers) * math.sqrt(share * (1 - share) / answers + z2 / (4 * answers * answers))
    return Estimate(share, max(0.0, min(share, middle - half)), min(1.0, max(share, middle + half)), round(answers))


def expected(right: Floats, labelled: Floats, seen: Floats, bounds: Sequence[float]) -> Estimate | None:
    """Return the expected accuracy of the ``seen`` answers, with a 95 % interval for their accuracy by labels.

    Arrays have one entry per score bin; the upper ``bounds`` end at 1. ``right`` of the ``labelled`` answers were
    right. None if there are too few labels, or nothing was seen.
    """
    labels, answers = float(labelled.sum()), float(seen.sum())
    if labels < LEAST_LABELS or answers <= 0:
        return None
    edges = np.array((0.0, *bounds))
    scores = (edges[1:] + edges[:-1]) / 2
    # The prior of a bin is its score, corrected by the mean error of all scores.
    off = (float(right.sum()) - float((labelled * scores).sum())) / labels
    guess = np.clip(scores + off, 0.02, 0.98)
    chance = (right + _PRIOR * guess) / (labelled + _PRIOR)
    weight = seen / answers
    moved = _moved(chance, seen / answers, labelled / labels, scores, np.diff(edges), labels)
    value = float(np.clip((weight * (chance + moved)).sum(), 0.5 / (answers + 1), 1 - 0.5 / (answers + 1)))
    spread = chance * (1 - chance)
    variance = float((weight * weight * spread / (labelled + _PRIOR + 1)).sum() + (weight * spread).sum() / answers)
    variance += float((weight * moved).sum()) ** 2 / 4
    # On the scale of log odds, the interval stays within 0 and 1. It is widened to possible shares of so many answers.
    odds, width = math.log(value / (1 - value)), Z * math.sqrt(variance) / (value * (1 - value))
    low = math.floor(_share(odds - width) * answers) / answers
    high = math.ceil(_share(odds + width) * answers) / answers
    return Estimate(value, low, high, round(answers))


def of_counts(labels: Mapping[tuple[str, str], float], seen: Floats, bounds: Sequence[float]) -> dict[str, Any]:
    """Return ``real`` and ``expected`` of one version, as in the status; None if unknown.

    ``labels`` counts labelled answers by score bin (the name of its upper bound, or ``none``) and outcome (``right``,
    ``wrong``); ``seen`` counts current answers by the same bins.
    """
    bins = [f"{bound:g}" for bound in bounds]
    right, wrong = (np.array([labels.get((name, kind), 0.0) for name in bins]) for kind in ("right", "wrong"))
    all_right = sum(number for (_, kind), number in labels.items() if kind == "right")
    found = {
        "real": measured(all_right, sum(labels.values())),
        "expected": expected(right, right + wrong, seen, bounds),
    }
    return {kind: None if one is None else one._asdict() for kind, one in found.items()}


def _moved(chance: Floats, now: Floats, then: Floats, scores: Floats, widths: Floats, labels: float) -> Floats:
    """Return the change of each bin's chance because scores moved within the bin.

    If scores fall, they also fall within bins; the shares of the neighbouring bins tell by how much.
    """
    few = 1 / labels
    ratio = np.log((now + few) / (then + few))
    apart = np.gradient(scores)
    shift = np.clip(np.gradient(ratio) / apart * widths, -2.0, 2.0) * widths / 12
    moved: Floats = np.gradient(chance) / apart * shift
    return moved


def described(one: Mapping[str, Any]) -> str:
    """Return a sentence on one version of the status (``accuracy.of_gauges``); empty without labels."""
    kinds = (("real", "by labels", "label"), ("expected", "expected of what it answers now", "answer"))
    return ", ".join(
        f"{found['value']:.1%} right {what} ({found['low']:.1%} to {found['high']:.1%}, {found['answers']:,} {of}"
        f"{'s' * (found['answers'] != 1)})"
        for kind, what, of in kinds if (found := one.get(kind))
    )  # fmt: skip


def _share(odds: float) -> float:
    return 1 / (1 + math.exp(-min(max(odds, -700.0), 700.0)))

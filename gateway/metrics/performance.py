"""How often a version is right: from labels that came back, and from its scores where none have come yet. Pure.

``measured`` is the share of labelled answers that were right. ``expected`` is what the answers given now would show if
all were labelled: labels say how often answers with a score like this one are right (calibration, bin by bin), scores
say how many such answers there are now. That is NannyML's CBPE; it holds as long as a score keeps its meaning, so it
sees that texts have become harder, and does not see that the world calls the same texts by another label.

Public: ``deploy`` may import it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

Z: Final = 1.959963984540054
"""Of an interval that covers in 95 of 100 cases."""
LEAST_LABELS: Final = 300
"""Labelled answers with a score below which nothing is expected."""
_PRIOR: Final = 2.0
"""How many labels a bin's guess is worth that the other bins make of it."""

Floats = NDArray[np.float64]


class Estimate(NamedTuple):
    """A share, the interval that covers it in 95 of 100 cases, and how many answers it is of."""

    value: float
    low: float
    high: float
    answers: int


def measured(right: float, answers: float) -> Estimate | None:
    """Return the accuracy of labelled answers with Wilson's interval; None without any."""
    if answers <= 0:
        return None
    share, z2 = right / answers, Z * Z
    middle = (share + z2 / (2 * answers)) / (1 + z2 / answers)
    half = Z / (1 + z2 / answers) * math.sqrt(share * (1 - share) / answers + z2 / (4 * answers * answers))
    return Estimate(share, max(0.0, min(share, middle - half)), min(1.0, max(share, middle + half)), round(answers))


def expected(right: Floats, labelled: Floats, seen: Floats, bounds: Sequence[float]) -> Estimate | None:
    """Return the accuracy of the answers that are ``seen``, with an interval for what labels of all of them would show.

    By bin of the score, whose upper ``bounds`` end at 1: how many of the ``labelled`` answers were ``right``, and how
    many answers are seen. None if there are too few labels, or nothing is seen.
    """
    labels, answers = float(labelled.sum()), float(seen.sum())
    if labels < LEAST_LABELS or answers <= 0:
        return None
    edges = np.array((0.0, *bounds))
    scores = (edges[1:] + edges[:-1]) / 2
    # A bin with few labels is guessed by its score, off by as much as scores are off on the whole.
    off = (float(right.sum()) - float((labelled * scores).sum())) / labels
    guess = np.clip(scores + off, 0.02, 0.98)
    chance = (right + _PRIOR * guess) / (labelled + _PRIOR)
    weight = seen / answers
    moved = _moved(chance, seen / answers, labelled / labels, scores, np.diff(edges), labels)
    value = float(np.clip((weight * (chance + moved)).sum(), 0.5 / (answers + 1), 1 - 0.5 / (answers + 1)))
    spread = chance * (1 - chance)
    variance = float((weight * weight * spread / (labelled + _PRIOR + 1)).sum() + (weight * spread).sum() / answers)
    variance += float((weight * moved).sum()) ** 2 / 4
    # On the scale of log odds an interval keeps between 0 and 1; a share of few answers can only be some numbers.
    odds, width = math.log(value / (1 - value)), Z * math.sqrt(variance) / (value * (1 - value))
    low = math.floor(_share(odds - width) * answers) / answers
    high = math.ceil(_share(odds + width) * answers) / answers
    return Estimate(value, low, high, round(answers))


def of_counts(labels: Mapping[tuple[str, str], float], seen: Floats, bounds: Sequence[float]) -> dict[str, Any]:
    """Return ``real`` and ``expected`` of one version as the status has them, None where nothing can be said.

    ``labels`` counts labelled answers by bin of the score (the name of its upper bound, or of none) and outcome
    (``right``, ``wrong``); ``seen`` counts what is answered now, by the same bins.
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
    """Return by how much each bin's chance is another because scores have moved within it.

    If scores fall, they do so inside of bins too: as much as the shares of the bins beside it say.
    """
    few = 1 / labels
    ratio = np.log((now + few) / (then + few))
    apart = np.gradient(scores)
    shift = np.clip(np.gradient(ratio) / apart * widths, -2.0, 2.0) * widths / 12
    moved: Floats = np.gradient(chance) / apart * shift
    return moved


def described(one: Mapping[str, Any]) -> str:
    """Return what the status says of one version (``accuracy.told``), for people; nothing if it has no labels."""
    kinds = (("real", "by labels", "labels"), ("expected", "expected of what it answers now", "answers"))
    return ", ".join(
        f"{found['value']:.1%} right {what} ({found['low']:.1%} to {found['high']:.1%}, {found['answers']:,} {of})"
        for kind, what, of in kinds if (found := one.get(kind))
    )  # fmt: skip


def _share(odds: float) -> float:
    return 1 / (1 + math.exp(-min(max(odds, -700.0), 700.0)))

"""Mirrored answers: which label of a version means which of another, and the groups that are counted apart.

A version may be wrong about one group of requests alone: about long texts, about one language, or whenever one label is
right. Such a fault is small among all answers and large in its group. So mirrored answers are also counted in groups:
by stable's label, by the text's length and by its language, each alone and never crossed.

Public: ``deploy`` may import it, for the gate of rollouts.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from typing import Final, NamedTuple

from gateway.metrics import texts

LABEL: Final = "label"
LENGTH: Final = "length"
LANGUAGE: Final = "language"
LENGTHS: Final = ("short", "middle", "long")
"""Classes of length, by the lengths of the last texts: the shortest and the longest few are apart."""
OTHER: Final = "(other)"
"""All further values."""
_MOST: Final = {LABEL: 8, LANGUAGE: 4}
"""Values that are counted apart, the most frequent ones."""
PLACES: Final = sum(_MOST.values()) + len(_MOST) + len(LENGTHS)
"""So many groups at most have numbers of their own."""
_SAMPLE: Final = 20
"""Answers that are seen before the values are chosen; they are counted then."""
_LENGTHS_KEPT: Final = 200
_END: Final = 0.06
"""Share of the texts in the first and in the last class of length: small enough that a fault of long texts fills it."""

Count = Callable[[str, str, bool], None]
"""Counts one answer: by what it is grouped, its group, and whether the versions agreed."""


class Features(NamedTuple):
    """What one request is grouped by. An empty label or text: unknown, so the request is in no such group."""

    label: str
    text: texts.Text


class Groups:
    """Counts the mirrored answers of one version by group. For use by one event loop.

    Which groups there are follows from the first requests alone, never from how they were answered.
    """

    def __init__(self, count: Count) -> None:
        self._count = count
        self._waiting: list[tuple[dict[str, str], int, bool]] = []
        self._known: dict[str, set[str]] = {}
        """By what is grouped → the values that are counted apart; empty until they are chosen."""
        self._lengths: deque[int] = deque(maxlen=_LENGTHS_KEPT)

    def see(self, features: Features, agreed: bool) -> None:
        """Count one answer, or keep it until the values are chosen."""
        values = {LABEL: features.label} if features.label else {}
        length = sum(map(len, features.text)) if isinstance(features.text, tuple) else len(features.text)
        if length:
            self._lengths.append(length)
            beginning = texts.beginning(features.text)
            values[LANGUAGE] = texts.language(beginning, texts.words_of(beginning))
        if self._known:
            self._add(values, length, agreed)
            return
        self._waiting.append((values, length, agreed))
        if len(self._waiting) == _SAMPLE:
            for by, most in _MOST.items():
                seen = Counter(one[by] for one, _, _ in self._waiting if by in one)
                self._known[by] = {value for value, _ in seen.most_common(most)}
            waiting, self._waiting = self._waiting, []
            for one in waiting:
                self._add(*one)

    def _add(self, values: Mapping[str, str], length: int, agreed: bool) -> None:
        for by, value in values.items():
            known = self._known[by]
            if len(known) < _MOST[by]:
                known.add(value)
            self._count(by, value if value in known else OTHER, agreed)
        if length:
            self._count(LENGTH, LENGTHS[self._length_class(length)], agreed)

    def _length_class(self, length: int) -> int:
        known = sorted(self._lengths)
        end = int(_END * (len(known) - 1))
        shortest, longest = known[end], known[-1 - end]
        if shortest == longest:
            return 1
        return 2 if length >= longest else int(length > shortest)


def renamed(stable: Sequence[str], canary: Sequence[str]) -> dict[str, str]:
    """Return the labels of ``canary`` that mean another label of ``stable``, which is at the same position.

    A name that both have means itself, at whatever position: so an order of its own changes nothing. Of the names that
    tokens have (``B-PER``), those of whole entities (``PER``) are returned as well.
    """
    found = {
        new: old for new, old in zip(canary, stable, strict=False) if new not in stable and old not in canary
    }  # fmt: skip
    return found | {
        new[2:]: old[2:] for new, old in found.items() if new[:2] in ("B-", "I-") and new[:2] == old[:2]
    }  # fmt: skip


def with_names(answer: object, names: Mapping[str, str]) -> object:
    """Return an answer with its labels replaced by what they mean (``renamed``); itself if there are no ``names``."""
    if not names:
        return answer
    if isinstance(answer, list | tuple):
        return [with_names(one, names) for one in answer]
    if not isinstance(answer, Mapping):
        return answer
    return {key: _with_names(key, value, names) for key, value in answer.items()}


def _with_names(key: object, value: object, names: Mapping[str, str]) -> object:
    if key in ("label", "entity", "entity_group"):
        return names.get(value, value) if isinstance(value, str) else value
    if key == "scores" and isinstance(value, Mapping):
        return {names.get(label, label): score for label, score in value.items()}
    return with_names(value, names) if key in ("results", "entities") else value

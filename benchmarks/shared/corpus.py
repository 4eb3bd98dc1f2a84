"""Texts to send: sentences of Zipf-distributed words, so that word caches see a realistic share of hits.

Pure and seeded: the same arguments give the same texts everywhere. Common words come from ``words.txt``; rarer ones are
derived from them (endings, prefixes, compounds, which a WordPiece vocabulary mostly splits). A fixed share of words are
numbers, codes and misspellings that are always new, as in real traffic. No text is repeated on purpose.
"""

from __future__ import annotations

import bisect
import itertools
import random
from dataclasses import dataclass
from pathlib import Path

WORDS = Path(__file__).with_name("words.txt")

NEVER_SEEN = 0.02
"""Share of words that no earlier text contained: numbers, codes, misspellings."""

_PREFIXES = ("un", "re", "non", "over", "pre", "inter", "micro", "anti", "multi")
_ENDINGS = ("s", "ed", "ing", "er", "ness", "able", "ly", "less", "ism", "ization")
_DERIVED = 10_000
_EXPONENT = 1.25


@dataclass(frozen=True, slots=True)
class Kind:
    """How long texts of one kind are, in words; the average token count is measured by the run and reported."""

    shortest: int
    longest: int


KINDS = {"short": Kind(12, 17), "long": Kind(130, 160)}
MIXED = "mixed"
"""Three short texts for each long one."""


def vocabulary() -> list[str]:
    """Return the words from the commonest to the rarest: the bundled ones as listed, then derived ones."""
    base = list(dict.fromkeys(WORDS.read_text(encoding="utf-8").split()))
    stems = [word for word in base if len(word) > 3]
    chooser = random.Random("derived words")
    known = set(base)
    derived: list[str] = []
    while len(derived) < _DERIVED:
        stem = chooser.choice(stems)
        match chooser.randrange(4):
            case 0:
                word = chooser.choice(_PREFIXES) + stem
            case 1:
                word = stem + chooser.choice(stems)
            case _:
                word = stem + chooser.choice(_ENDINGS)
        if word not in known:
            known.add(word)
            derived.append(word)
    return base + derived


class Corpus:
    """A seeded source of texts."""

    def __init__(self, seed: int = 1) -> None:
        self._words = vocabulary()
        weights = (1 / (rank + 2.7) ** _EXPONENT for rank in range(len(self._words)))
        self._cumulative = list(itertools.accumulate(weights))
        self._random = random.Random(seed)

    def texts(self, kind: str, count: int) -> list[str]:
        """Return ``count`` texts of a kind: ``short``, ``long`` or ``mixed``. Raises ``KeyError`` for another."""
        if kind == MIXED:
            return [self._text(KINDS["long" if i % 4 == 3 else "short"]) for i in range(count)]
        return [self._text(KINDS[kind]) for _ in range(count)]

    def _text(self, kind: Kind) -> str:
        left = self._random.randint(kind.shortest, kind.longest)
        parts: list[str] = []
        while left > 0:
            length = min(left, self._random.randint(6, 17))
            left -= length
            words = [self._word() for _ in range(length)]
            if length > 8:
                words[length // 2] += ","
            words[0] = words[0].capitalize()
            parts.append(" ".join(words) + self._random.choice("....?!"))
        return " ".join(parts)

    def _word(self) -> str:
        if self._random.random() < NEVER_SEEN:
            return self._new_word()
        point = self._random.random() * self._cumulative[-1]
        return self._words[bisect.bisect(self._cumulative, point)]

    def _new_word(self) -> str:
        match self._random.randrange(3):
            case 0:
                return f"{self._random.randrange(10, 1_000_000)}"
            case 1:
                return f"{self._random.choice('abcdefgh')}{self._random.randrange(1000, 100_000)}"
            case _:
                letters = list(self._random.choice(self._words[:1000]))
                at = self._random.randrange(len(letters))
                letters[at] = self._random.choice("abcdefghijklmnopqrstuvwxyz")
                return "".join(letters) + self._random.choice("aeiou")


def usual_words() -> tuple[str, ...]:
    """Return what a reference of such texts knows about words: 900 of them are usual."""
    return (*vocabulary()[:900],)

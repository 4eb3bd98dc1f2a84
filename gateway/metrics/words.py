"""The words of one version's texts: which are usual, how many of a text are not, and which have risen or fallen.

Usual are the most frequent words of the reference; while there is none, those of the texts so far, so that a capture
finds the variables counted as they will be. A word is counted once per text. Memory is bounded: if there are too many
words the names of the rarest are forgotten, and what was counted of them stays with the hash they had.
"""

from __future__ import annotations

import contextlib
import json
import math
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any, Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

from gateway.metrics import sharing
from gateway.metrics.drift import MOST_WORDS, Words

MOST: Final = 3000
"""Words that are counted by name, about."""
_PLACES: Final = 1 << 15
"""Hashes of those that are not: what is forgotten is rare, so that two of them on one place add little."""
_FEW: Final = 3
"""What is counted fewer times by name is not looked at: it cannot have come often."""
NONE, MORE, NEW = RISEN = ("none", "more", "new")
"""Whether a text has a word that has risen: a usual one, or one that was not usual."""

_LEARNED_AT: Final = (1000, 4000, 16_000)
"""Texts after which what is frequent in them becomes what is usual, if there is no reference."""
_WINDOW: Final = 1000
"""Shares are compared over the last one to two times as many texts."""
_LOOKED: Final = 500
"""Texts between two looks for words that have risen."""
_OLD: Final = 32_768
"""Texts after which what was counted counts half."""
_LEAST: Final = 5
"""Texts that must have a word: for it to have risen, and to be told at all."""
_TIMES: Final = 4.0
"""How many times as frequent a word must be for ``RISEN``: one that only seems so by chance is rare, and stays so."""
_SIGMAS: Final = 4.5
"""Deviations of noise a word's share must have moved by to be told."""
_UNEVEN: Final = 3.0
_MOST_TOLD: Final = 20

Counts: TypeAlias = NDArray[np.int32]
Pair = tuple[str, str]
"""Endpoint and version."""
Shares = tuple[float, float | None]
"""Of the texts that have a word: now, and usually; None if it was not usual."""
Moved = dict[str, dict[str, Shares]]
"""Words that ``rose`` and that ``fell``, those that moved furthest first."""


@dataclass(frozen=True, slots=True)
class Usual:
    """How frequent words usually are: shares of texts."""

    shares: Mapping[str, float]
    texts: float
    """How many these shares are of."""
    least: float
    """All others had less."""

    @classmethod
    def of(cls, words: Words) -> Usual:
        """Return the words of a reference as shares."""
        shares = words.shares()
        least = min(shares.values(), default=1.0)
        if len(shares) < MOST_WORDS and words.texts:  # there was room for every word that came often enough
            least = min(least, _LEAST / words.texts)
        return cls(shares, words.texts, least)

    def noise(self, share: float, texts: int) -> float:
        """Return how far from what is expected the number of texts with a word may be by chance."""
        # These shares are of a sample, too; and few come more unevenly than many.
        return _SIGMAS * math.sqrt(share * texts * (1 + texts / max(1.0, self.texts))) + _UNEVEN

    def exceeded(self, counts: Mapping[str, int], texts: int) -> list[tuple[float, str]]:
        """Return the words that so many of ``texts`` have, if chance does not explain it, after how much more often."""
        found = []
        for word, count in counts.items():
            was = self.shares.get(word, self.least)
            if count > was * texts + self.noise(was, texts):
                found.append((count / was / texts, word))
        return found


@dataclass(slots=True)
class Tally:
    """How many of ``texts`` texts had each word."""

    texts: int
    counts: Counter[str]
    forgotten: Counts
    """What was counted of words whose names are forgotten, by their hash."""

    @classmethod
    def new(cls) -> Tally:
        """Return the tally of no text."""
        return cls(0, Counter(), np.zeros(_PLACES, dtype=np.int32))

    def copy(self) -> Tally:
        """Return one that does not change."""
        return Tally(self.texts, self.counts.copy(), self.forgotten.copy())

    def of(self, words: Collection[str]) -> Counts:
        """Return how many texts had each of these words."""
        counts, number = self.counts, len(words)
        places = np.fromiter(map(hash, words), np.int64, number) & (_PLACES - 1)
        # `dict.get`: a Counter would make an entry of every word it is asked for.
        by_name = np.fromiter((counts.get(word, 0) for word in words), np.int32, number)
        found: Counts = by_name + self.forgotten[places]
        return found

    def often(self, before: Tally) -> dict[str, int]:
        """Return how many texts since ``before`` had each word that came often enough."""
        former = before.counts.get
        names = [word for word, count in self.counts.items() if count >= _FEW and count - (former(word) or 0) >= _FEW]
        counts = self.of(names) - before.of(names)
        often = np.flatnonzero(counts >= _LEAST)
        return dict(zip([names[i] for i in often.tolist()], counts[often].tolist(), strict=True))

    def forget(self) -> None:
        """Forget the names of the rarest, so that a third of the room is free."""
        least = 1
        while len(self.counts) > MOST * 2 // 3:
            gone = {word: count for word, count in self.counts.items() if count <= least}
            places = np.fromiter(map(hash, gone), np.int64, len(gone)) & (_PLACES - 1)
            np.add.at(self.forgotten, places, np.fromiter(gone.values(), np.int32, len(gone)))
            self.counts = Counter({word: count for word, count in self.counts.items() if count > least})
            least *= 2

    def halve(self) -> None:
        """Let everything count half."""
        self.texts //= 2
        self.counts = Counter({word: count // 2 for word, count in self.counts.items() if count > 1})
        self.forgotten //= 2


@dataclass(frozen=True, slots=True)
class Recent:
    """What came between two tallies."""

    before: Tally
    now: Tally
    usual: Usual

    def moved(self) -> Moved:
        """Return the words that have risen or fallen by more than noise; the usual shares are a sample, too."""
        usual, texts = self.usual, self.now.texts - self.before.texts
        often = self.now.often(self.before)
        rose = usual.exceeded(often, texts)
        counts = dict(
            zip(usual.shares, (self.now.of(usual.shares) - self.before.of(usual.shares)).tolist(), strict=True)
        )
        fell = [
            (counts[word] / was, word)
            for word, was in usual.shares.items()
            if counts[word] < was * texts - usual.noise(was, texts)
        ]
        counts |= often
        return {
            name: {word: (counts[word] / texts, usual.shares.get(word)) for _, word in moved[:_MOST_TOLD]}
            for name, moved in (("rose", sorted(rose, reverse=True)), ("fell", sorted(fell)))
        }


class Watched:
    """Counts words. One event loop calls it."""

    def __init__(self, reference: Words | None, begin: Callable[[], None] = lambda: None) -> None:
        """``begin`` is called when other words have become usual: what was counted before is of no use."""
        self._tally = Tally.new()
        self._words, self._begin = reference, begin
        self._usual = Usual.of(reference or Words(0.0, {}))
        self._names = frozenset(self._usual.shares)
        self._older = self._newer = Tally.new()
        self._looked_at = 0
        self._has_reference = reference is not None
        self._learned_at = [] if reference is not None else list(_LEARNED_AT)
        self._risen: frozenset[str] = frozenset()

    def see(self, texts: Sequence[set[str]]) -> tuple[list[float], list[str]]:
        """Count the words of texts; return of each its share of unusual words, and what has risen (``RISEN``).

        Nothing of texts without words, nor before it is known what is usual.
        """
        tally = self._tally
        if tally.texts - self._looked_at >= _LOOKED:
            self._look()
        if len(tally.counts) > MOST:
            tally.forget()
        tally.counts.update(chain.from_iterable(texts))
        tally.texts += len(texts)
        usual = self._names
        if not usual:
            return [], []
        shares = [len(words - usual) / len(words) for words in texts if words]
        if not self._risen:
            return shares, [NONE] * len(shares)
        return shares, [self._risen_in(words) for words in texts if words]

    def _risen_in(self, words: set[str]) -> str:
        found = self._risen & words
        if not found:
            return NONE
        return MORE if found <= self._names else NEW

    def usual(self) -> Words | None:
        """Return what is usual, for a reference; None before it is known.

        These are the words in use, since the shares of unusual ones were counted with them; how frequent each is, is
        of all texts so far, once there are enough.
        """
        if not self._names or self._words is None or self._tally.texts < _LEARNED_AT[0]:
            return self._words
        shares, texts = self._usual.shares, float(self._tally.texts)
        counts = self._tally.of(shares).tolist()
        return Words(
            texts, {word: count or share * texts for (word, share), count in zip(shares.items(), counts, strict=True)}
        )

    def recent(self) -> Recent | None:
        """Return a copy of what came lately, for another thread; None if there is no reference, or too little came."""
        if not self._has_reference or self._tally.texts - self._older.texts < _LOOKED:
            return None
        return Recent(self._older, self._tally.copy(), self._usual)

    def _look(self) -> None:
        tally = self._tally
        if self._learned_at and tally.texts >= self._learned_at[0]:
            self._learn()
        if self._names:
            self._find_risen()
        if tally.texts >= _OLD:
            tally.halve()
            self._older = self._newer = tally.copy()
        elif tally.texts - self._newer.texts >= _WINDOW:
            self._older, self._newer = self._newer, tally.copy()
        self._looked_at = tally.texts

    def _learn(self) -> None:
        del self._learned_at[0]
        often = self._tally.often(Tally.new())
        frequent = sorted(often.items(), key=lambda one: (-one[1], one[0]))[:MOST_WORDS]
        self._words = Words(float(self._tally.texts), {word: float(count) for word, count in frequent})
        self._usual = Usual.of(self._words)
        self._names = frozenset(self._usual.shares)
        self._begin()

    def _find_risen(self) -> None:
        texts = self._tally.texts - self._older.texts
        exceeded = self._usual.exceeded(self._tally.often(self._older), texts)
        self._risen = frozenset(word for times, word in sorted(exceeded)[-_MOST_TOLD:] if times >= _TIMES)


def share(told: Mapping[Pair, Moved], numbers: Path) -> None:
    """Leave what this process tells beside the file of its ``numbers``, for the other workers. Raises ``OSError``."""
    path = numbers.with_suffix(sharing.WORDS)
    content = json.dumps([[*pair, moved] for pair, moved in told.items()]).encode()
    if content != (path.read_bytes() if path.exists() else b"[]"):
        sharing.leave(content, path)


def gathered(folder: Path, own: Mapping[Pair, Moved], own_file: Path) -> dict[Pair, Moved]:
    """Return what all workers that share ``folder`` tell; ``own`` is what this process does, whatever its file says."""
    found = {pair: [moved] for pair, moved in own.items()}
    for path in folder.glob(f"*{sharing.WORDS}"):
        if path.stem != own_file.stem:
            with contextlib.suppress(OSError, ValueError):
                for endpoint, version, moved in json.loads(path.read_bytes()):
                    found.setdefault((endpoint, version), []).append(moved)
    return {pair: merged(told) for pair, told in found.items()}


def merged(told: Sequence[Moved]) -> Moved:
    """Return what several workers tell as one: each word once, with the mean of its shares."""
    found: Moved = {}
    for name in ("rose", "fell"):
        seen: dict[str, list[Shares]] = {}
        for one in told:
            for word, shares in one.get(name, {}).items():
                seen.setdefault(word, []).append(shares)
        means = {word: (sum(now for now, _ in each) / len(each), each[0][1]) for word, each in seen.items()}
        found[name] = dict(list(means.items())[:_MOST_TOLD])
    return found


def described(moved: Moved) -> dict[str, list[dict[str, Any]]]:
    """Return it as plain values, for programs."""
    return {
        name: [{"word": word, "now": now, "was": was} for word, (now, was) in words.items()]
        for name, words in moved.items()
    }

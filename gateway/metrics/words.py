"""The words of one version's texts: which are usual, how many of a text are not, and which have risen or fallen.

Usual are the most frequent words of the reference; while there is none, those of the texts so far, so that a capture
finds the variables counted as they will be. A word is counted once per text. Memory is bounded: the rarest words are
forgotten when there are too many, so what comes in fewer than one of some hundred texts is not known by name.
"""

from __future__ import annotations

import contextlib
import json
import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any, Final

from gateway.metrics import sharing
from gateway.metrics.drift import MOST_WORDS, Words

MOST: Final = 3000
"""Words that are counted at a time, at most."""
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
_MOST_TOLD: Final = 20

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


@dataclass(frozen=True, slots=True)
class Recent:
    """How many of the last ``texts`` texts had each word: the difference between then and now."""

    texts: int
    before: Mapping[str, int]
    now: Mapping[str, int]
    usual: Usual

    def moved(self) -> Moved:
        """Return the words that have risen or fallen by more than noise; the usual shares are a sample, too."""
        usual, texts, before = self.usual, self.texts, self.before
        counts = {word: count - before.get(word, 0) for word, count in self.now.items()}
        noise = _SIGMAS * math.sqrt(texts * (1 + texts / usual.texts)) if usual.texts else math.inf
        rose = [
            (count / was, word)
            for word, count in counts.items()
            if count >= _LEAST
            and (was := usual.shares.get(word, usual.least)) * texts + noise * math.sqrt(was) + 1 < count
        ]
        fell = [
            (count / was, word)
            for word, was in usual.shares.items()
            if (count := counts.get(word, 0)) < was * texts - noise * math.sqrt(was)
        ]
        return {
            name: {word: (counts.get(word, 0) / texts, usual.shares.get(word)) for _, word in moved[:_MOST_TOLD]}
            for name, moved in (("rose", sorted(rose, reverse=True)), ("fell", sorted(fell)))
        }


class Watched:
    """Counts words. One event loop calls it."""

    def __init__(self, reference: Words | None, begin: Callable[[], None] = lambda: None) -> None:
        """``begin`` is called when other words have become usual: what was counted before is of no use."""
        self._counts: Counter[str] = Counter()
        self._texts = 0
        self._words, self._begin = reference, begin
        self._usual = Usual.of(reference or Words(0.0, {}))
        self._names = frozenset(self._usual.shares)
        self._older: tuple[int, Mapping[str, int]] = (0, {})
        self._newer = self._older
        self._looked_at = 0
        self._has_reference = reference is not None
        self._learned_at = [] if reference is not None else list(_LEARNED_AT)
        self._risen: frozenset[str] = frozenset()

    def see(self, texts: Sequence[set[str]]) -> tuple[list[float], list[str]]:
        """Count the words of texts; return of each its share of unusual words, and what has risen (``RISEN``).

        Nothing of texts without words, nor before it is known what is usual.
        """
        if self._texts - self._looked_at >= _LOOKED:
            self._look()
        if len(self._counts) > MOST:
            self._forget()
        self._counts.update(chain.from_iterable(texts))
        self._texts += len(texts)
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
        if not self._names or self._words is None:
            return None
        if self._texts < _LEARNED_AT[0]:
            return self._words
        texts, counts = float(self._texts), self._counts
        return Words(texts, {word: counts.get(word) or share * texts for word, share in self._usual.shares.items()})

    def recent(self) -> Recent | None:
        """Return a copy of what came lately, for another thread; None if there is no reference, or too little came."""
        texts, before = self._older
        if not self._has_reference or self._texts - texts < _LOOKED:
            return None
        return Recent(self._texts - texts, before, dict(self._counts), self._usual)

    def _look(self) -> None:
        self._looked_at = self._texts
        if self._learned_at and self._texts >= self._learned_at[0]:
            self._learn()
        if self._names:
            self._find_risen()
        if self._texts - self._newer[0] >= _WINDOW:
            self._older, self._newer = self._newer, (self._texts, dict(self._counts))
        if self._texts >= _OLD:
            self._halve()

    def _forget(self) -> None:
        """Forget the rarest, so that a third of the room is free."""
        least = 1
        while len(self._counts) > MOST * 2 // 3:
            self._counts = Counter({word: count for word, count in self._counts.items() if count > least})
            least *= 2

    def _learn(self) -> None:
        del self._learned_at[0]
        frequent = [one for one in self._counts.most_common(MOST_WORDS) if one[1] >= _LEAST]
        self._words = Words(float(self._texts), {word: float(count) for word, count in frequent})
        self._usual = Usual.of(self._words)
        self._names = frozenset(self._usual.shares)
        self._begin()

    def _find_risen(self) -> None:
        began, before = self._older
        texts, shares, least = self._texts - began, self._usual.shares, self._usual.least
        risen = [
            (times, word)
            for word, count in self._counts.items()
            if count >= _LEAST
            and (new := count - before.get(word, 0)) >= _LEAST
            and (times := new / shares.get(word, least)) >= _TIMES * texts
        ]
        self._risen = frozenset(word for _, word in sorted(risen, reverse=True)[:_MOST_TOLD])

    def _halve(self) -> None:
        self._counts = Counter({word: count // 2 for word, count in self._counts.items() if count > 1})
        self._texts //= 2
        self._looked_at = self._texts
        self._older = self._newer = (self._texts, dict(self._counts))


def share(told: Mapping[Pair, Moved], numbers: Path) -> None:
    """Leave what this process tells beside the file of its ``numbers``, for the other workers. Raises ``OSError``."""
    path = numbers.with_suffix(sharing.WORDS)
    content = json.dumps([[*pair, moved] for pair, moved in told.items()]).encode()
    if content != (path.read_bytes() if path.exists() else b"[]"):
        aside = path.with_name(f"{path.name}{sharing.ASIDE}")
        aside.write_bytes(content)
        aside.replace(path)


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

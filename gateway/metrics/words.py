"""The words of one version's texts: which are usual, how many of a text are not, and which have risen or fallen.

Usual are the most frequent words of the reference; while there is none, those of the texts so far, so that a capture
finds the variables counted as they will be. A word is counted once per text. Memory is bounded: a word has a name once
it has come a few times; when there are too many, the rarest are forgotten.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

from gateway.metrics import sharing
from gateway.metrics.drift import MOST_WORDS, Words
from gateway.metrics.wording import Hashes, Lookup, Numbers, Vocabulary, Worded, hashed

MOST: Final = 4096
"""Words that are counted by name."""
_PLACES: Final = 1 << 13
_FEW: Final = 3
"""A word that came more seldom lately has no name: it cannot have come often."""
_MOST_NAMED: Final = 256
"""Words that get a name at once; the others get it when they come again."""
NONE, MORE, NEW, UNSEEN = RISEN = ("none", "more", "new", "unseen")
"""Whether a text has a word that has risen: a usual one, one that was not usual, or one that nobody had ever seen."""

_LEARNED_AT: Final = (1000, 4000, 16_000)
"""Texts after which what is frequent in them becomes what is usual, if there is no reference."""
_WINDOW: Final = 1000
"""Shares are compared over the last one to two times as many texts."""
OFTEN: Final = 4
"""How often a word that nobody had ever seen must have come lately to count."""
LATELY: Final = 750
"""A word that was never seen is held against the last one to two times as many texts."""
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
Floats: TypeAlias = NDArray[np.float64]
Pair = tuple[str, str]
"""Endpoint and version."""
Shares = tuple[float, float | None]
"""Of the texts that have a word: now, and usually; None if it was not usual."""
Moved = dict[str, dict[str, Shares]]
"""Words that ``rose`` and that ``fell``, those that moved furthest first."""


class Usual:
    """How frequent words usually are: shares of texts. Those that are usual have the first numbers."""

    def __init__(self, words: Words) -> None:
        self.shares = words.shares()
        self.texts = words.texts
        """How many these shares are of."""
        least = min(self.shares.values(), default=1.0)
        if len(self.shares) < MOST_WORDS and words.texts:  # there was room for every word that came often enough
            least = min(least, _LEAST / words.texts)
        self.was = np.full(MOST, least)
        """By number; all that are not usual had less than the least."""
        self.was[: len(self.shares)] = list(self.shares.values())

    def noise(self, texts: int) -> Floats:
        """Return how far from what is expected the number of texts with each word may be by chance."""
        # These shares are of a sample, too; and few come more unevenly than many.
        variance = self.was * (texts * (1 + texts / max(1.0, self.texts)))
        noise: Floats = _SIGMAS * np.sqrt(variance) + _UNEVEN
        return noise

    def risen(self, counts: Counts, texts: int, unseen: NDArray[np.int64] | None = None) -> list[int]:
        """Return the words that so many of ``texts`` have, if chance does not explain it, the furthest risen first.

        ``unseen`` are those that the texts of these shares did not have once.
        """
        expected, noise = self.was * texts, self.noise(texts)
        if unseen is not None and len(unseen):
            expected[unseen] = texts / max(1.0, self.texts)
            noise[unseen] = _SIGMAS * np.sqrt(expected[unseen]) + _UNEVEN
        found = np.flatnonzero((counts >= _LEAST) & (counts > expected + noise))
        order = np.argsort(-counts[found] / expected[found], kind="stable")
        numbers: list[int] = found[order].tolist()
        return numbers

    def fallen(self, counts: Counts, texts: int) -> list[int]:
        """Return the usual words that fewer of ``texts`` have than chance explains, the furthest fallen first."""
        expected = self.was * texts
        usual = len(self.shares)
        found = np.flatnonzero((counts < expected - self.noise(texts))[:usual])
        order = np.argsort(counts[found] / expected[found], kind="stable")
        numbers: list[int] = found[order].tolist()
        return numbers


class Tally:
    """How many of ``texts`` texts had each word that has a name, by number."""

    def __init__(self) -> None:
        self.texts = 0
        self.counts = np.zeros(MOST, dtype=np.int32)

    def copy(self) -> Tally:
        """Return one that does not change."""
        copy = Tally()
        copy.texts, copy.counts = self.texts, self.counts.copy()
        return copy

    def halve(self) -> None:
        """Let everything count half."""
        self.texts //= 2
        self.counts //= 2

    def renumber(self, kept: Sequence[int]) -> None:
        """Give words other numbers: the first of ``kept`` the first one. The others are forgotten."""
        counts = np.zeros_like(self.counts)
        counts[: len(kept)] = self.counts[kept]
        self.counts = counts


class Lately:
    """How often words that nobody had ever seen came in the last texts."""

    def __init__(self) -> None:
        self._hashes = np.zeros(_PLACES, dtype=np.uint64)
        self._newer, self._older = np.zeros(_PLACES, dtype=np.int32), np.zeros(_PLACES, dtype=np.int32)

    def see(self, hashes: Hashes) -> NDArray[np.bool_]:
        """Count such words, one after the other; say of each whether it has come ``OFTEN`` times with this one."""
        order = hashes.argsort(kind="stable")
        sorted_ = hashes[order]
        firsts = np.flatnonzero(np.append(True, sorted_[1:] != sorted_[:-1]))[: len(hashes)]
        times = np.diff(np.append(firsts, len(hashes)))
        places = (sorted_[firsts] >> np.uint64(20)).view(np.int64) & (_PLACES - 1)
        # The last of several that share a place has it: there are eight times as many places as texts to remember.
        is_same = self._hashes[places] == sorted_[firsts]
        before = np.where(is_same, self._newer[places] + self._older[places], 0)
        others = places[~is_same]
        self._newer[others] = self._older[others] = 0
        self._hashes[places] = sorted_[firsts]
        self._newer[places] += times.astype(np.int32)
        nth = np.arange(len(hashes)) - np.repeat(firsts - before - 1, times)
        found = np.empty(len(hashes), dtype=bool)
        found[order] = nth >= OFTEN
        return found

    def age(self) -> None:
        """Forget what came before the last time this was called."""
        self._older, self._newer = self._newer, np.zeros(_PLACES, dtype=np.int32)


class Nameless:
    """Words that have come too seldom to have a name: of those that share a place, the one that comes most."""

    def __init__(self) -> None:
        self._hashes = np.zeros(_PLACES, dtype=np.uint64)
        self._counts = np.zeros(_PLACES, dtype=np.int32)

    def see(self, hashes: Hashes, counts: Counts) -> NDArray[np.bool_]:
        """Count different words; return which have come often enough for a name, and forget them.

        In ``counts`` is then how often those came.
        """
        places = (hashes >> np.uint64(20)).view(np.int64) & (_PLACES - 1)
        is_here = self._hashes[places] == hashes
        # Another word weakens the one whose place it is, until it is its own.
        now = self._counts[places] + np.where(is_here, counts, -counts)
        is_taken = ~is_here & (now <= 0)
        self._hashes[places[is_taken]] = hashes[is_taken]
        np.maximum(counts, now, out=counts, where=is_here)
        self._counts[places] = np.where(is_taken, counts, now)
        is_named: NDArray[np.bool_] = (is_here | is_taken) & (counts >= _FEW)
        self._hashes[places[is_named]] = self._counts[places[is_named]] = 0
        return is_named

    def age(self) -> None:
        """Let what came until now count half."""
        self._counts //= 2


@dataclass(frozen=True, slots=True)
class Recent:
    """What came lately: by number, in how many of ``texts`` texts each word was."""

    names: Sequence[str]
    counts: Counts
    texts: int
    usual: Usual
    unseen: Numbers
    """Of those that are not usual, the ones that had never been seen."""

    def moved(self) -> Moved:
        """Return the words that have risen or fallen by more than noise; the usual shares are a sample, too."""
        counts, texts, shares = self.counts, self.texts, self.usual.shares
        return {
            what: {
                self.names[i]: (int(counts[i]) / texts, shares.get(self.names[i]))
                for i in numbers[:_MOST_TOLD]
            }
            for what, numbers in (
                ("rose", self.usual.risen(counts, texts, self.unseen)), ("fell", self.usual.fallen(counts, texts)),
            )
        }  # fmt: skip


class Watched:
    """Counts words. One event loop calls it."""

    def __init__(self, reference: Words | None, begin: Callable[[], None] = lambda: None) -> None:
        """``begin`` is called when other words have become usual: what was counted before is of no use."""
        self._tally, self._older, self._newer = Tally(), Tally(), Tally()
        self._words, self._begin = reference, begin
        self._usual = Usual(reference or Words(0.0, {}))
        self._names = list(self._usual.shares)
        self._hashes = np.zeros(MOST, dtype=np.uint64)
        self._hashes[: len(self._names)] = hashed(self._names)
        self._lookup = Lookup(self._hashes[: len(self._names)])
        self._nameless = Nameless()
        self._seen = Vocabulary(reference.seen if reference is not None else b"")
        """All words but those that were seen lately for the first time."""
        self._known: Vocabulary | None = self._seen
        """What a word that was never seen is not among; None if nobody knows."""
        if reference is not None:
            self._known = Vocabulary(reference.seen) if reference.seen else None
        self._lately, self._aged_at = Lately(), 0
        self._first_seen: tuple[list[Hashes], list[Hashes]] = [], []
        """Of the last but one, and the last ``LATELY`` texts."""
        self._looked_at = self._came = 0
        self._has_reference = reference is not None
        self._learned_at = [] if reference is not None else list(_LEARNED_AT)
        self._risen: list[int] = []
        self._is_risen = np.zeros(MOST + 1, dtype=bool)
        """By number; the last one is of words without a name."""

    def see(self, texts: Worded) -> tuple[Floats, NDArray[np.int64]]:
        """Count the words of texts.

        Returns of each its share of unusual words, and what has risen, as its number among ``RISEN``. Nothing of texts
        without words, nor before it is known what is usual.
        """
        tally = self._tally
        if tally.texts - self._looked_at >= _LOOKED:
            self._look()
        numbers = self._lookup.find(texts.hashes)
        tally.texts += len(texts)
        self._came += len(texts)
        usual = len(self._usual.shares)
        is_unusual = (numbers < 0) | (numbers >= usual)
        shares, risen = np.zeros(0), np.zeros(0, dtype=np.int64)
        if usual:
            total = np.diff(texts.firsts)
            has_words = total > 0
            shares = (texts.sums(is_unusual) / np.maximum(total, 1))[has_words]
            risen = np.zeros(len(shares), dtype=np.int64)
            if self._risen:
                is_risen = self._is_risen[numbers]
                more, new = (texts.sums(is_risen & of)[has_words] > 0 for of in (~is_unusual, is_unusual))
                risen = np.where(new, RISEN.index(NEW), np.where(more, RISEN.index(MORE), RISEN.index(NONE)))
        unseen = self._see_unseen(texts, np.flatnonzero(is_unusual))
        if usual and unseen.any():
            risen[texts.sums(unseen)[has_words] > 0] = RISEN.index(UNSEEN)
        is_named = numbers >= 0
        tally.counts += np.bincount(numbers[is_named], minlength=MOST).astype(np.int32)
        self._see_others(texts, np.flatnonzero(~is_named))
        return shares, risen

    def _see_unseen(self, texts: Worded, unusual: Numbers) -> NDArray[np.bool_]:
        """Remember these words; say of each word whether it was never seen before what is usual, and came lately."""
        is_again = np.zeros(len(texts.hashes), dtype=bool)
        if self._known is not None:
            unusual = unusual[~self._known.has(texts.hashes[unusual])]
            is_again[unusual] = self._lately.see(texts.hashes[unusual])
        older, newer = self._first_seen
        newer.append(texts.hashes[unusual])
        if self._tally.texts - self._aged_at >= LATELY:
            self._lately.age()
            self._seen.add(np.unique(np.concatenate([np.zeros(0, dtype=np.uint64), *older])))
            self._first_seen, self._aged_at = (newer, []), self._tally.texts
        return is_again

    def _see_others(self, texts: Worded, others: NDArray[np.int64]) -> None:
        """Count words without a name, and give those a name that come often."""
        hashes, first, counts = np.unique(texts.hashes[others], return_index=True, return_counts=True)
        times = counts.astype(np.int32)
        new = np.flatnonzero(self._nameless.see(hashes, times))[:_MOST_NAMED]
        if len(self._names) + len(new) > MOST:
            self._forget()
        at = len(self._names)
        self._hashes[at : at + len(new)] = hashes[new]
        self._tally.counts[at : at + len(new)] = times[new]
        self._lookup.add(hashes[new])
        self._names += [texts.name(i) for i in others[first[new]].tolist()]

    def usual(self) -> Words | None:
        """Return what is usual, for a reference; None before it is known.

        These are the words in use, since the shares of unusual ones were counted with them; how frequent each is, is
        of all texts so far, once there are enough.
        """
        if not self._usual.shares or self._words is None or self._tally.texts < _LEARNED_AT[0]:
            return self._words
        shares, texts = self._usual.shares, float(self._tally.texts)
        counts = self._tally.counts[: len(shares)].tolist()
        found = {word: count or share * texts for (word, share), count in zip(shares.items(), counts, strict=True)}
        known = 0 if self._has_reference or self._seen.is_full else self._came
        return Words(texts, found, self._seen.content(), known)

    def recent(self) -> Recent | None:
        """Return what came lately, for another thread; None if there is no reference, or too little came."""
        texts = self._tally.texts - self._older.texts
        if not self._has_reference or texts < _LOOKED:
            return None
        counts = self._tally.counts - self._older.counts
        unseen = np.zeros(0, dtype=np.int64)
        if self._known is not None:
            often = np.flatnonzero(counts >= _LEAST)
            often = often[often >= len(self._usual.shares)]
            unseen = often[~self._known.has(self._hashes[often])]
        return Recent(self._names, counts, texts, self._usual, unseen)

    def _look(self) -> None:
        tally = self._tally
        if self._learned_at and tally.texts >= self._learned_at[0]:
            self._learn()
        if self._usual.shares:
            self._find_risen()
        if tally.texts >= _OLD:
            tally.halve()
            self._older = self._newer = tally.copy()
            self._aged_at = tally.texts
        elif tally.texts - self._newer.texts >= _WINDOW:
            self._older, self._newer = self._newer, tally.copy()
            if not self._learned_at:
                self._nameless.age()
        self._looked_at = tally.texts

    def _learn(self) -> None:
        del self._learned_at[0]
        counts = self._tally.counts[: len(self._names)].tolist()
        often = [i for i, count in enumerate(counts) if count >= _LEAST]
        frequent = sorted(often, key=lambda i: (-counts[i], self._names[i]))[:MOST_WORDS]
        self._words = Words(
            float(self._tally.texts), {self._names[i]: float(counts[i]) for i in frequent}, self._seen.content()
        )
        self._usual = Usual(self._words)
        usual = set(frequent)
        self._renumber(frequent + [i for i in range(len(self._names)) if i not in usual])
        self._begin()

    def _forget(self) -> None:
        """Forget the names of the rarest, so that a third of the room is free."""
        usual = len(self._usual.shares)
        counts = self._tally.counts
        # Not those that are watched because they have risen.
        order = sorted(range(usual, len(self._names)), key=lambda i: (not self._is_risen[i], -counts[i]))
        room = max(0, MOST * 2 // 3 - usual)
        self._renumber([*range(usual), *order[:room]])

    def _renumber(self, kept: list[int]) -> None:
        for tally in {id(one): one for one in (self._tally, self._older, self._newer)}.values():
            tally.renumber(kept)
        hashes = np.zeros_like(self._hashes)
        hashes[: len(kept)] = self._hashes[kept]
        self._hashes, self._names = hashes, [self._names[i] for i in kept]
        self._lookup = Lookup(hashes[: len(kept)])
        place = {old: new for new, old in enumerate(kept)}
        self._watch([place[i] for i in self._risen if i in place])

    def _find_risen(self) -> None:
        texts = self._tally.texts - self._older.texts
        counts = self._tally.counts - self._older.counts
        least = _TIMES * texts * self._usual.was
        self._watch([i for i in self._usual.risen(counts, texts)[:_MOST_TOLD] if counts[i] >= least[i]])

    def _watch(self, risen: list[int]) -> None:
        self._risen = risen
        self._is_risen[:] = False
        self._is_risen[risen] = True


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

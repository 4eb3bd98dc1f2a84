"""The words of one version's texts: which are usual, the share of unusual ones per text, which have risen or fallen.

Usual words are the most frequent ones of the reference. Without a reference, they are those of the texts so far, so
that a capture counts the variables as they will be counted later. A word counts once per text. Memory is bounded: a
word gets a name after a few occurrences, and the rarest names are forgotten when there are too many.
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
from gateway.metrics.drift import MAX_WORDS, Words
from gateway.metrics.wording import Hashes, Lookup, Numbers, TextWords, Vocabulary, hashed

MOST: Final = 4096
"""Most words that are counted by name."""
_PLACES: Final = 1 << 13
_FEW: Final = 3
"""Recent occurrences before a word gets a name."""
_MAX_NAMED: Final = 256
"""Most words that get a name at a time; others get theirs with their next occurrence."""
NONE, MORE, NEW, UNSEEN = RISEN = ("none", "more", "new", "unseen")
"""Values of ``risen_word``: no risen word in a text, a usual one, an unusual one, or one never seen before."""

_LEARNED_AT: Final = (1000, 4000, 16_000)
"""Numbers of texts after which the frequent words become the usual ones, if there is no reference."""
_WINDOW: Final = 1000
"""Shares are compared over the last 1,000 to 2,000 texts."""
OFTEN: Final = 4
"""Recent occurrences from which a never seen word counts."""
LATELY: Final = 750
"""Never seen words are counted over the last 750 to 1,500 texts."""
_LOOKED: Final = 500
"""Texts between two searches for risen words."""
_OLD: Final = 32_768
"""After this many texts all counts are halved."""
_LEAST: Final = 5
"""Fewest texts with a word for it to be usual, or to have risen."""
_TIMES: Final = 4.0
"""Factor by which a word must be more frequent for ``risen_word``; chance rarely causes such a factor."""
_SIGMAS: Final = 4.5
"""Standard deviations of noise by which a word's share must have moved to be reported."""
_UNEVEN: Final = 3.0
_MAX_TOLD: Final = 20

Counts: TypeAlias = NDArray[np.int32]
Floats: TypeAlias = NDArray[np.float64]
Pair = tuple[str, str]
"""Endpoint and version."""
Shares = tuple[float, float | None]
"""Share of texts with a word: recently, and usually (None if the word was not usual)."""
Moved = dict[str, dict[str, Shares]]
"""Words that ``rose`` and that ``fell``, the largest change first."""


class UsualWords:
    """The usual share of texts for each word. Usual words have the first numbers."""

    def __init__(self, words: Words) -> None:
        self.shares = words.shares()
        self.texts = words.texts
        """Number of texts behind these shares."""
        least = min(self.shares.values(), default=1.0)
        if len(self.shares) < MAX_WORDS and words.texts:  # every word that occurred often enough is included
            least = min(least, _LEAST / words.texts)
        self.was = np.full(MOST, least)
        """Share by number; for words that are not usual, an upper limit."""
        self.was[: len(self.shares)] = list(self.shares.values())

    def noise(self, texts: int) -> Floats:
        """Return by how many texts with each word the count may deviate by chance, an array (words,)."""
        # The usual shares are estimates, too; and rare words are less evenly spread than frequent ones.
        variance = self.was * (texts * (1 + texts / max(1.0, self.texts)))
        noise: Floats = _SIGMAS * np.sqrt(variance) + _UNEVEN
        return noise

    def risen(self, counts: Counts, texts: int, unseen: NDArray[np.int64] | None = None) -> list[int]:
        """Return the words whose count in ``texts`` texts is too high for chance, the largest factor first.

        ``unseen`` are words that do not occur in the texts behind the usual shares.
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
        """Return the usual words whose count in ``texts`` texts is too low for chance, the largest factor first."""
        expected = self.was * texts
        usual = len(self.shares)
        found = np.flatnonzero((counts < expected - self.noise(texts))[:usual])
        order = np.argsort(counts[found] / expected[found], kind="stable")
        numbers: list[int] = found[order].tolist()
        return numbers


class WordCounts:
    """The number of texts with each named word, by the word's number, among ``texts`` texts."""

    def __init__(self) -> None:
        self.texts = 0
        self.counts = np.zeros(MOST, dtype=np.int32)

    def copy(self) -> WordCounts:
        """Return a copy."""
        copy = WordCounts()
        copy.texts, copy.counts = self.texts, self.counts.copy()
        return copy

    def halve(self) -> None:
        """Halve all counts."""
        self.texts //= 2
        self.counts //= 2

    def renumber(self, kept: Sequence[int]) -> None:
        """Number the words anew: ``kept`` lists the old numbers in the new order. Other words are forgotten."""
        counts = np.zeros_like(self.counts)
        counts[: len(kept)] = self.counts[kept]
        self.counts = counts


class UnseenWords:
    """Counts recent occurrences of words that were never seen before, by hash."""

    def __init__(self) -> None:
        self._hashes = np.zeros(_PLACES, dtype=np.uint64)
        self._newer, self._older = np.zeros(_PLACES, dtype=np.int32), np.zeros(_PLACES, dtype=np.int32)

    def see(self, hashes: Hashes) -> NDArray[np.bool_]:
        """Count these words in order; return for each whether this is at least its fourth recent occurrence."""
        order = hashes.argsort(kind="stable")
        sorted_ = hashes[order]
        firsts = np.flatnonzero(np.append(True, sorted_[1:] != sorted_[:-1]))[: len(hashes)]
        times = np.diff(np.append(firsts, len(hashes)))
        places = (sorted_[firsts] >> np.uint64(20)).view(np.int64) & (_PLACES - 1)
        # Of words that share a place, the last one takes it; collisions are rare, with eight places per text.
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
        """Forget the occurrences before the previous call."""
        self._older, self._newer = self._newer, np.zeros(_PLACES, dtype=np.int32)


class RareWords:
    """Counts words without a name, by hash. Of words that share a place, the most frequent one keeps it."""

    def __init__(self) -> None:
        self._hashes = np.zeros(_PLACES, dtype=np.uint64)
        self._counts = np.zeros(_PLACES, dtype=np.int32)

    def see(self, hashes: Hashes, counts: Counts) -> NDArray[np.bool_]:
        """Count distinct words; return which have occurred often enough for a name, and forget those.

        For them, ``counts`` then holds all their occurrences.
        """
        places = (hashes >> np.uint64(20)).view(np.int64) & (_PLACES - 1)
        is_here = self._hashes[places] == hashes
        # Each occurrence of another word lowers the count of the place's word; at zero the place changes its word.
        now = self._counts[places] + np.where(is_here, counts, -counts)
        is_taken = ~is_here & (now <= 0)
        self._hashes[places[is_taken]] = hashes[is_taken]
        np.maximum(counts, now, out=counts, where=is_here)
        self._counts[places] = np.where(is_taken, counts, now)
        is_named: NDArray[np.bool_] = (is_here | is_taken) & (counts >= _FEW)
        self._hashes[places[is_named]] = self._counts[places[is_named]] = 0
        return is_named

    def age(self) -> None:
        """Halve all counts."""
        self._counts //= 2


@dataclass(frozen=True, slots=True)
class RecentWords:
    """Recent words: the number of texts with each, among ``texts`` texts."""

    names: Sequence[str]
    counts: Counts
    texts: int
    usual: UsualWords
    unseen: Numbers
    """Numbers of frequent words that were never seen before."""

    def frequent(self) -> dict[str, Any]:
        """Return the frequent words as plain values: in how many of how many texts each was."""
        often = np.flatnonzero(self.counts >= _LEAST)
        often = often[np.argsort(-self.counts[often], kind="stable")][:MAX_WORDS]
        return {"texts": self.texts, "counts": {self.names[i]: int(self.counts[i]) for i in often.tolist()}}

    def moved(self) -> Moved:
        """Return the words that have risen or fallen beyond noise."""
        counts, texts, shares = self.counts, self.texts, self.usual.shares
        return {
            what: {
                self.names[i]: (int(counts[i]) / texts, shares.get(self.names[i]))
                for i in numbers[:_MAX_TOLD]
            }
            for what, numbers in (
                ("rose", self.usual.risen(counts, texts, self.unseen)), ("fell", self.usual.fallen(counts, texts)),
            )
        }  # fmt: skip


class WordWatch:
    """Counts the words of one version's texts. For use by one event loop."""

    def __init__(
        self,
        reference: Words | None,
        begin: Callable[[], None] = lambda: None,
        learned_at: Sequence[int] = _LEARNED_AT,
    ) -> None:
        """``begin`` is called when the usual words change, which makes earlier counts meaningless.

        ``learned_at``: numbers of texts after which the usual words are learned, if there is no reference.
        """
        self._tally, self._older, self._newer = WordCounts(), WordCounts(), WordCounts()
        self._words, self._begin = reference, begin
        self._usual = UsualWords(reference or Words(0.0, {}))
        self._names = list(self._usual.shares)
        self._hashes = np.zeros(MOST, dtype=np.uint64)
        self._hashes[: len(self._names)] = hashed(self._names)
        self._lookup = Lookup(self._hashes[: len(self._names)])
        self._rare = RareWords()
        self._seen = Vocabulary(reference.seen if reference is not None else b"")
        """All words, except those first seen recently."""
        self._known: Vocabulary | None = self._seen
        """The words that count as seen; None if unknown."""
        if reference is not None:
            self._known = Vocabulary(reference.seen) if reference.seen else None
        self._unseen_words, self._aged_at = UnseenWords(), 0
        self._first_seen: tuple[list[Hashes], list[Hashes]] = [], []
        """Hashes of words first seen in the last but one, and in the last, 750 texts."""
        self._looked_at = self._came = 0
        self._has_reference = reference is not None
        self._learned_at = [] if reference is not None else list(learned_at)
        self._risen: list[int] = []
        self._is_risen = np.zeros(MOST + 1, dtype=bool)
        """By number; the last entry stands for words without a name."""

    def see(self, texts: TextWords) -> tuple[Floats, NDArray[np.int64]]:
        """Count the words of texts.

        Returns for each text its share of unusual words (float64), and its value of ``risen_word`` as an index into
        ``RISEN``. Texts without words are left out, and so are all texts until usual words are known.
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

    def _see_unseen(self, texts: TextWords, unusual: Numbers) -> NDArray[np.bool_]:
        """Remember these words; return for each word of the texts whether it is never seen and recently frequent."""
        is_again = np.zeros(len(texts.hashes), dtype=bool)
        if self._known is not None:
            unusual = unusual[~self._known.has(texts.hashes[unusual])]
            is_again[unusual] = self._unseen_words.see(texts.hashes[unusual])
        older, newer = self._first_seen
        newer.append(texts.hashes[unusual])
        if self._tally.texts - self._aged_at >= LATELY:
            self._unseen_words.age()
            self._seen.add(np.unique(np.concatenate([np.zeros(0, dtype=np.uint64), *older])))
            self._first_seen, self._aged_at = (newer, []), self._tally.texts
        return is_again

    def _see_others(self, texts: TextWords, others: NDArray[np.int64]) -> None:
        """Count words without a name, and name those that occur often."""
        hashes, first, counts = np.unique(texts.hashes[others], return_index=True, return_counts=True)
        times = counts.astype(np.int32)
        new = np.flatnonzero(self._rare.see(hashes, times))[:_MAX_NAMED]
        if len(self._names) + len(new) > MOST:
            self._forget()
        at = len(self._names)
        self._hashes[at : at + len(new)] = hashes[new]
        self._tally.counts[at : at + len(new)] = times[new]
        self._lookup.add(hashes[new])
        self._names += [texts.name(i) for i in others[first[new]].tolist()]

    def usual(self) -> Words | None:
        """Return the usual words, for a reference; None until they are known.

        They are the words in use, because the shares of unusual words were counted with them. Their frequencies are
        over all texts so far, once there are enough.
        """
        if not self._usual.shares or self._words is None or self._tally.texts < _LEARNED_AT[0]:
            return self._words
        shares, texts = self._usual.shares, float(self._tally.texts)
        counts = self._tally.counts[: len(shares)].tolist()
        found = {word: count or share * texts for (word, share), count in zip(shares.items(), counts, strict=True)}
        known = 0 if self._has_reference or self._seen.is_full else self._came
        return Words(texts, found, self._seen.content(), known)

    def recent(self) -> RecentWords | None:
        """Return recent words for another thread; None without a reference or with too few texts."""
        texts = self._tally.texts - self._older.texts
        if not self._has_reference or texts < _LOOKED:
            return None
        counts = self._tally.counts - self._older.counts
        unseen = np.zeros(0, dtype=np.int64)
        if self._known is not None:
            often = np.flatnonzero(counts >= _LEAST)
            often = often[often >= len(self._usual.shares)]
            unseen = often[~self._known.has(self._hashes[often])]
        return RecentWords(self._names, counts, texts, self._usual, unseen)

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
                self._rare.age()
        self._looked_at = tally.texts

    def _learn(self) -> None:
        del self._learned_at[0]
        counts = self._tally.counts[: len(self._names)].tolist()
        often = [i for i, count in enumerate(counts) if count >= _LEAST]
        frequent = sorted(often, key=lambda i: (-counts[i], self._names[i]))[:MAX_WORDS]
        self._words = Words(
            float(self._tally.texts), {self._names[i]: float(counts[i]) for i in frequent}, self._seen.content()
        )
        self._usual = UsualWords(self._words)
        usual = set(frequent)
        self._renumber(frequent + [i for i in range(len(self._names)) if i not in usual])
        self._begin()

    def _forget(self) -> None:
        """Forget the names of the rarest words, to free a third of the room."""
        usual = len(self._usual.shares)
        counts = self._tally.counts
        # Risen words keep their names.
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
        self._watch([i for i in self._usual.risen(counts, texts)[:_MAX_TOLD] if counts[i] >= least[i]])

    def _watch(self, risen: list[int]) -> None:
        self._risen = risen
        self._is_risen[:] = False
        self._is_risen[risen] = True


def share(told: Mapping[Pair, Moved], numbers: Path) -> None:
    """Write this process's findings beside the file of its ``numbers``, for the others. Raises ``OSError``."""
    path = numbers.with_suffix(sharing.WORDS)
    content = json.dumps([[*pair, moved] for pair, moved in told.items()]).encode()
    if content != (path.read_bytes() if path.exists() else b"[]"):
        sharing.replace(path, content)


def gathered(folder: Path, own: Mapping[Pair, Moved], own_file: Path) -> dict[Pair, Moved]:
    """Return the findings of all workers that share ``folder``; ``own`` replaces those in this process's file."""
    found = {pair: [moved] for pair, moved in own.items()}
    for path in folder.glob(f"*{sharing.WORDS}"):
        if path.stem != own_file.stem:
            with contextlib.suppress(OSError, ValueError):
                for endpoint, version, moved in json.loads(path.read_bytes()):
                    found.setdefault((endpoint, version), []).append(moved)
    return {pair: merged(told) for pair, told in found.items()}


def merged(told: Sequence[Moved]) -> Moved:
    """Merge the findings of several workers: each word once, with the mean of its recent shares."""
    found: Moved = {}
    for name in ("rose", "fell"):
        seen: dict[str, list[Shares]] = {}
        for one in told:
            for word, shares in one.get(name, {}).items():
                seen.setdefault(word, []).append(shares)
        means = {word: (sum(now for now, _ in each) / len(each), each[0][1]) for word, each in seen.items()}
        found[name] = dict(list(means.items())[:_MAX_TOLD])
    return found


def described(moved: Moved) -> dict[str, list[dict[str, Any]]]:
    """Return the findings as plain values."""
    return {
        name: [{"word": word, "now": now, "was": was} for word, (now, was) in words.items()]
        for name, words in moved.items()
    }

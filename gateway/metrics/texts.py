"""What texts look like: script, language, letter case, whether they were seen lately, and the words they are made of.

Only a text's beginning is looked at (``MOST_CHARS``), so that no text costs more than another; many texts at once:
numpy looks at two hundred for the price of twenty. At most ``MOST_A_SECOND`` of a version are, by chance; duplicates
are looked for in whole runs of texts (``Runs``). No text is kept longer than until it is counted.

Public: ``deploy`` may import it, to write references of bundles.
"""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import chain
from typing import Final, TypeVar

import numpy as np
from numpy.typing import NDArray

from gateway.metrics import variables
from gateway.metrics.languages import FUNCTION_WORDS, OF_SCRIPT, SCRIPTS
from gateway.metrics.wording import Hashes, Lookup, Numbers, Worded, hashed, worded
from gateway.metrics.words import RISEN, Watched

MOST_CHARS: Final = 200
"""Characters of a text that are looked at: about thirty words."""
NONE: Final = "none"
"""A text without letters, or of no language that is known."""
BOOLEANS: Final = ("false", "true")
CASES: Final = ("lower", "upper", "title", "mixed", NONE)
SCRIPT_NAMES: Final = (NONE, *SCRIPTS)
LANGUAGES: Final = (*chain.from_iterable(FUNCTION_WORDS.values()), *OF_SCRIPT.values(), NONE)

_LOWER, _UPPER, _TITLE, _MIXED, _NO_CASE = range(len(CASES))
_LATIN: Final = SCRIPT_NAMES.index("latin")
_LEAST_KANA: Final = 0.1
"""A tenth of kana among the letters makes a text Japanese: most of its letters may be Han."""
_UNSPACED: Final = frozenset({"han", "kana", "thai", "lao", "khmer", "myanmar"})
"""Scripts without spaces between words: their words are pairs of letters."""
_PLACES: Final = 512
_FILLED: Final = 2 * _PLACES
_MOST_HASHED: Final = 1000
"""Characters at a text's beginning that say whether it is the same as another one as long."""
MOST_A_SECOND: Final = 100
"""Texts of a version that are looked at: of more, a share drawn by chance."""
MOST_COUNTED: Final = 1000
"""The same of texts whose tokens and answers are counted, and that may be duplicates: they cost a quarter."""
_RUN: Final = 4096
"""Texts that come one after the other, of which duplicates are looked for."""
_AT_ONCE: Final = 256
_LEAST_S: Final = 0.05
"""Within less, what comes says nothing of a rate: it may be one request."""

T = TypeVar("T")
Text = str | tuple[str, str]
"""What is encoded as one row."""


def beginning(text: Text) -> str:
    """Return what is looked at of a text, of both if it is a pair."""
    if type(text) is tuple:
        half = MOST_CHARS // 2
        return f"{text[0][:half]} {text[1][:half]}"
    return text[:MOST_CHARS]  # type: ignore[return-value]  # of a plain str


def letter_case(text: str) -> int:
    """Return the class of a text's letters, as its number in ``CASES``; scripts without case have none."""
    if text.islower():
        return _LOWER
    if text.isupper():
        return _UPPER
    if text.lower() == text:
        return _NO_CASE
    return _TITLE if text.istitle() else _MIXED


def scripts(texts: Sequence[str]) -> Numbers:
    """Return the script that most letters of each text are in, as its number in ``SCRIPT_NAMES``."""
    found = np.full(len(texts), _LATIN)
    others = [i for i, text in enumerate(texts) if not text.isascii() or text.upper() == text.lower()]
    if others:
        found[others] = _scripts([texts[i] for i in others])
    return found


def _scripts(texts: Sequence[str]) -> Numbers:
    width = MOST_CHARS + 1
    # What is beyond the basic plane (emoji, rare letters) becomes two surrogates, which are in no script.
    letters = "".join([text[:width].ljust(width) for text in texts]).encode("utf-16-le", "surrogatepass")
    codes = np.frombuffer(letters, np.uint16)
    if len(codes) != len(texts) * width:  # a pair of surrogates would move all that is behind it
        joined = "".join([text[:width].ljust(width) for text in texts]).encode("utf-32-le", "surrogatepass")
        codes = np.minimum(np.frombuffer(joined, np.uint32), 0xFFFF).astype(np.uint16)
    rows = np.repeat(np.arange(len(texts)) * len(SCRIPT_NAMES), width)
    counts = np.bincount(rows + _table()[codes], minlength=len(texts) * len(SCRIPT_NAMES))
    counts = counts.reshape(len(texts), -1)
    counts[:, 0] = 0
    most: Numbers = counts.argmax(axis=1)
    kana = SCRIPT_NAMES.index("kana")
    most[counts[:, kana] > _LEAST_KANA * counts.sum(axis=1)] = kana
    return most


@cache
def _table() -> NDArray[np.uint8]:
    """The script of every character of the basic plane, as its number among the names."""
    table = np.zeros(0x10000, dtype=np.uint8)
    for number, ranges in enumerate(SCRIPTS.values(), 1):
        for first, last in ranges:
            table[first : last + 1] = number
    return table


def language(of: Worded, written: Numbers) -> Numbers:
    """Return the language of each text, as its number: the one with the most function words, given its script."""
    known, votes, may, usually = _function_words()
    found = known.find(of.hashes)
    hits = np.flatnonzero(found >= 0)
    sums = np.zeros((len(hits) + 1, votes.shape[1]), dtype=np.uint64)
    # A byte for each language: adding them up counts all at once. A text's few words fill no byte.
    np.cumsum(votes[found[hits]], axis=0, out=sums[1:])
    counted = np.diff(sums[np.searchsorted(hits, of.firsts)], axis=0).astype("<u8").view(np.uint8) & may[written]
    return np.where(counted.any(axis=1), counted.argmax(axis=1), usually[written])


@cache
def _function_words() -> tuple[Lookup, Hashes, NDArray[np.uint8], Numbers]:
    """All of them, and the votes of each: a byte per language, in words of eight.

    A word that only one language of its script has says twice as much as one that it shares. Then by script: which
    languages are told apart (255), and what a text without a function word is.
    """
    votes: dict[str, NDArray[np.uint8]] = {}
    width = -(-len(LANGUAGES) // 8) * 8
    may = np.zeros((len(SCRIPT_NAMES), width), dtype=np.uint8)
    usually = np.array([LANGUAGES.index(OF_SCRIPT.get(script, NONE)) for script in SCRIPT_NAMES])
    for script, languages in FUNCTION_WORDS.items():
        saying = Counter(word for listed in languages.values() for word in set(listed.split()))
        for code, listed in languages.items():
            number = LANGUAGES.index(code)
            may[SCRIPT_NAMES.index(script), number] = 255
            for word in set(listed.split()):
                votes.setdefault(word, np.zeros(width, dtype=np.uint8))[number] = 2 if saying[word] == 1 else 1
    table: Hashes = np.array(list(votes.values())).view("<u8").astype(np.uint64)
    return Lookup(hashed(list(votes))), table, may, usually


@dataclass(frozen=True, slots=True)
class Looked:
    """What some texts look like: by variable the number of each text's value among ``VALUES``; and their words."""

    numbers: Mapping[str, Numbers]
    worded: Worded


VALUES: Final[Mapping[str, Sequence[str]]] = {
    variables.SCRIPT: SCRIPT_NAMES, variables.LANGUAGE: LANGUAGES, variables.CASE: CASES,
    variables.DUPLICATE: BOOLEANS, variables.RISEN: RISEN,
}  # fmt: skip


def look(texts: Sequence[str]) -> Looked:
    """Look at the beginnings of texts."""
    written = scripts(texts)
    words = worded(texts, _is_unspaced()[written])
    cases = np.fromiter(map(letter_case, texts), np.int64, len(texts))
    return Looked(
        {variables.SCRIPT: written, variables.LANGUAGE: language(words, written), variables.CASE: cases}, words
    )


@cache
def _is_unspaced() -> NDArray[np.bool_]:
    return np.array([script in _UNSPACED for script in SCRIPT_NAMES])


def counted(name: str, numbers: Numbers) -> dict[str, int]:
    """Return how many of these are of each value of a variable, without those that none is of."""
    values = VALUES[name]
    return {values[i]: times for i, times in enumerate(np.bincount(numbers).tolist()) if times}


class Recent:
    """Says whether a text was among the last few hundred, by its hash alone.

    Every text has one of ``_PLACES`` places, and is remembered until another text with the same place comes: for about
    as many texts as there are places. A text that is a share of the traffic is found as often whether one worker sees
    the traffic or each of several a part of it.
    """

    def __init__(self) -> None:
        self._places = np.zeros(_PLACES, dtype=np.int64)
        self._seen = 0

    def forget(self) -> None:
        """Begin anew: texts have come that were not seen."""
        self._seen = 0

    def see(self, keys: Sequence[int]) -> Numbers:
        """Say of each text, by its ``key``, whether it was seen: 1 or 0; of the first ones, nothing.

        Then most places are empty.
        """
        came = np.array(keys, dtype=np.int64)
        at = came & (_PLACES - 1)
        order = at.argsort(kind="stable")
        came, at = came[order], at[order]
        before = self._places[at]
        is_like = np.flatnonzero(at[1:] == at[:-1])
        before[is_like + 1] = came[is_like]
        self._places[at] = came  # of several the last one stays
        found = np.empty(len(at), dtype=np.int64)
        found[order] = came == before
        new, self._seen = max(0, _FILLED - self._seen), self._seen + len(at)
        return found[new:]


def key(text: Text) -> int:
    """Return the number that a text is recognised by."""
    if len(text) <= _MOST_HASHED and type(text) is str:
        return hash(text)
    return hash((text[:_MOST_HASHED], len(text))) if type(text) is str else hash((key(text[0]), key(text[1])))


class Sample:
    """Draws a share of what comes, so that at most about ``most`` a second are left."""

    def __init__(self, most: int, chance: Callable[[], float], clock: Callable[[], float] = time.monotonic) -> None:
        self._most, self._chance, self._clock = most, chance, clock
        self._began, self._came = clock(), 0
        self._share = 1.0
        self._skipped = 0
        """How many are left out before the next one that is drawn."""

    def of(self, listed: Sequence[T], number: int = 0) -> Sequence[T]:
        """Return some of what is ``listed``, and never twice ``most``; they count for ``number`` if it is more.

        They are as large a share as the last second's rate allows, or the rate of the last ``2 * most`` if they came
        sooner: traffic that begins at once is not looked at whole for a second.
        """
        now = self._clock()
        took = now - self._began
        if took >= 1 or self._came >= 2 * self._most:
            self._share = min(1.0, self._most * max(took, _LEAST_S) / max(1, self._came))
            self._began, self._came, self._skipped = now, 0, self._gap()
        self._came += max(number, len(listed))
        if self._share < 1:
            listed = self._drawn(listed)
        step = len(listed) // self._most
        return listed if step <= 1 else listed[int(self._chance() * step) :: step]

    def _drawn(self, listed: Sequence[T]) -> Sequence[T]:
        # One chance for each that is drawn instead of one for each that comes.
        at, drawn = self._skipped, []
        while at < len(listed):
            drawn.append(listed[at])
            at += 1 + self._gap()
        self._skipped = at - len(listed)
        return drawn

    def _gap(self) -> int:
        return int(math.log(1 - self._chance()) / math.log1p(-self._share)) if self._share < 1 else 0


class Runs:
    """Says which of the texts that come one after the other belong to a run: on average ``most`` a second at most.

    While fewer come, runs follow each other without a gap.
    """

    def __init__(self, most: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._most, self._clock = most, clock
        self._left, self._next = 0, -math.inf
        self._has_gap = self.is_first = False
        """Of ``is_first``: whether the last ``number`` were the first after texts that belonged to no run."""

    def has(self, number: int) -> bool:
        """Say whether the next ``number`` texts belong to one."""
        if self._left > 0:
            self._left -= number
            self.is_first = False
            return True
        now = self._clock()
        if now < self._next:
            self._has_gap = True
            return False
        self._left, self._next = _RUN - number, now + _RUN / self._most
        self.is_first, self._has_gap = self._has_gap, False
        return True


Take = Callable[[Mapping[str, int]], object]
"""Counts values of one variable: how often each came."""
Shares = Callable[[list[float]], object]


class Looks:
    """Takes the texts of one version, and counts what they look like, many at a time. One event loop calls it."""

    def __init__(
        self, takes: Mapping[str, Take], sample: Sample, watched: Watched | None = None, unusual: Shares | None = None
    ) -> None:
        """``takes`` are the variables that count, by name: those that are missing are not looked for.

        ``watched`` counts the words, ``unusual`` takes the shares of unusual ones.
        """
        self._takes = takes
        self._sample = sample
        self._recent = Recent() if variables.DUPLICATE in takes else None
        self._watched, self._unusual = watched, unusual
        self._drawn: list[str] = []
        """Beginnings of those that are looked at."""
        self._keys: list[int] = []
        """Of those that may be duplicates."""

    def see(self, texts: Sequence[Text]) -> None:
        """Count these texts, or some of them."""
        self._drawn += map(beginning, self._sample.of(texts))
        if len(self._drawn) >= _AT_ONCE:
            self._count()

    def follow(self, texts: Sequence[Text], *, is_first: bool = False) -> None:
        """Count which of these were seen lately, one after the other; ``is_first``: others have come before them."""
        if self._recent is None:
            return
        if is_first:
            self._repeat()
            self._recent.forget()
        self._keys += map(key, texts)
        if len(self._keys) >= _AT_ONCE:
            self._repeat()

    def carry(self) -> None:
        """Count what is pending."""
        self._repeat()
        self._count()

    def _repeat(self) -> None:
        keys, self._keys = self._keys, []
        if keys and self._recent is not None:
            self._take(variables.DUPLICATE, self._recent.see(keys))

    def _count(self) -> None:
        texts, self._drawn = self._drawn, []
        for start in range(0, len(texts), _AT_ONCE):
            looked = look(texts[start : start + _AT_ONCE])
            for name, numbers in looked.numbers.items():
                self._take(name, numbers)
            if self._watched is not None:
                shares, risen = self._watched.see(looked.worded)
                self._take(variables.RISEN, risen)
                if self._unusual is not None:
                    self._unusual(shares.tolist())

    def _take(self, name: str, numbers: Numbers) -> None:
        take = self._takes.get(name)
        if take is not None and len(numbers):
            take(counted(name, numbers))

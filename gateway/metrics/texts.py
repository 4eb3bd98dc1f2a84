"""Properties of texts: script, language, letter case, recent duplicates, and words.

Only the beginning of a text is examined (``MAX_CHARS``), so the cost does not grow with its length. Texts are examined
in groups, because numpy takes about as long for 200 as for 20. At most about ``MAX_A_SECOND`` texts per version and
second are examined, drawn at random. Duplicates are searched in whole runs of consecutive texts (``Runs``). Texts are
not kept after they were counted.

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
from gateway.metrics.drift import Words
from gateway.metrics.languages import FUNCTION_WORDS, OF_SCRIPT, SCRIPTS
from gateway.metrics.wording import Hashes, Lookup, Numbers, TextWords, hashed, split_words
from gateway.metrics.words import RISEN, WordWatch

MAX_CHARS: Final = 200
"""Characters of a text that are examined: about thirty words."""
NONE: Final = "none"
"""A text without letters, or in an unknown language."""
BOOLEANS: Final = ("false", "true")
CASES: Final = ("lower", "upper", "title", "mixed", NONE)
SCRIPT_NAMES: Final = (NONE, *SCRIPTS)
LANGUAGES: Final = (*chain.from_iterable(FUNCTION_WORDS.values()), *OF_SCRIPT.values(), NONE)

_LOWER, _UPPER, _TITLE, _MIXED, _NO_CASE = range(len(CASES))
_LATIN: Final = SCRIPT_NAMES.index("latin")
_LEAST_KANA: Final = 0.1
"""A text with this share of kana is Japanese, although most of its letters may be Han."""
_UNSPACED: Final = frozenset({"han", "kana", "thai", "lao", "khmer", "myanmar"})
"""Scripts without spaces between words: each pair of letters counts as a word."""
_PLACES: Final = 512
_FILLED: Final = 2 * _PLACES
_MAX_HASHED: Final = 1000
"""Characters at a text's beginning that, with its length, identify it."""
MAX_A_SECOND: Final = 100
"""Texts of a version that are examined per second; of more, a random sample."""
MAX_COUNTED: Final = 1000
"""The same for texts whose tokens, answers and duplicates are counted, which costs a quarter."""
_RUN: Final = 4096
"""Consecutive texts that are searched for duplicates."""
_AT_ONCE: Final = 256
_BETWEEN_LOOKS: Final = 2 * _AT_ONCE
"""Texts after which ``WordWatch`` has learned at the latest."""
_LEAST_S: Final = 0.05
"""Shortest time over which a rate is computed; less may be a single request."""

T = TypeVar("T")
Text = str | tuple[str, str]
"""A text or pair of texts that is encoded as one row."""


def beginning(text: Text) -> str:
    """Return the part of a text that is examined; of a pair, of both texts."""
    if type(text) is tuple:
        half = MAX_CHARS // 2
        return f"{text[0][:half]} {text[1][:half]}"
    return text[:MAX_CHARS]  # type: ignore[return-value]  # of a plain str


def letter_case(text: str) -> int:
    """Return the index of a text's letter case in ``CASES``."""
    if text.islower():
        return _LOWER
    if text.isupper():
        return _UPPER
    if text.lower() == text:
        return _NO_CASE
    return _TITLE if text.istitle() else _MIXED


def scripts(texts: Sequence[str]) -> Numbers:
    """Return for each text the script of most of its letters, as an index into ``SCRIPT_NAMES``."""
    found = np.full(len(texts), _LATIN)
    others = [i for i, text in enumerate(texts) if not text.isascii() or text.upper() == text.lower()]
    if others:
        found[others] = _scripts([texts[i] for i in others])
    return found


def _scripts(texts: Sequence[str]) -> Numbers:
    width = MAX_CHARS + 1
    # Characters beyond the basic plane (emoji, rare letters) become two surrogates, which are in no script.
    letters = "".join([text[:width].ljust(width) for text in texts]).encode("utf-16-le", "surrogatepass")
    codes = np.frombuffer(letters, np.uint16)
    if len(codes) != len(texts) * width:  # surrogate pairs have shifted the rows
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
    """The index of the script of every character of the basic plane."""
    table = np.zeros(0x10000, dtype=np.uint8)
    for number, ranges in enumerate(SCRIPTS.values(), 1):
        for first, last in ranges:
            table[first : last + 1] = number
    return table


def language(of: TextWords, written: Numbers) -> Numbers:
    """Return for each text the index of the language with the most function words, given the text's script."""
    known, votes, may, usually = _function_words()
    found = known.find(of.hashes)
    hits = np.flatnonzero(found >= 0)
    sums = np.zeros((len(hits) + 1, votes.shape[1]), dtype=np.uint64)
    # Each language has a byte in a 64-bit word, so one sum counts all languages. A short text cannot overflow a byte.
    np.cumsum(votes[found[hits]], axis=0, out=sums[1:])
    counted = np.diff(sums[np.searchsorted(hits, of.firsts)], axis=0).astype("<u8").view(np.uint8) & may[written]
    return np.where(counted.any(axis=1), counted.argmax(axis=1), usually[written])


@cache
def _function_words() -> tuple[Lookup, Hashes, NDArray[np.uint8], Numbers]:
    """Return all function words, their votes (a byte per language), and by script the possible and the usual languages.

    A word that only one language of its script has counts twice. Possible languages are marked by 255; the usual
    language is used for a text without function words.
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
class TextProperties:
    """Properties of some texts: for each variable, each text's index into ``VALUES``; and the texts' words."""

    numbers: Mapping[str, Numbers]
    words: TextWords


VALUES: Final[Mapping[str, Sequence[str]]] = {
    variables.SCRIPT: SCRIPT_NAMES, variables.LANGUAGE: LANGUAGES, variables.CASE: CASES,
    variables.DUPLICATE: BOOLEANS, variables.RISEN: RISEN,
}  # fmt: skip


def examine(texts: Sequence[str]) -> TextProperties:
    """Examine the beginnings of texts."""
    written = scripts(texts)
    words = split_words(texts, _is_unspaced()[written])
    cases = np.fromiter(map(letter_case, texts), np.int64, len(texts))
    return TextProperties(
        {variables.SCRIPT: written, variables.LANGUAGE: language(words, written), variables.CASE: cases}, words
    )


@cache
def _is_unspaced() -> NDArray[np.bool_]:
    return np.array([script in _UNSPACED for script in SCRIPT_NAMES])


def counted(name: str, numbers: Numbers) -> dict[str, int]:
    """Return how many texts have each value of a variable, without values that no text has."""
    values = VALUES[name]
    return {values[i]: times for i, times in enumerate(np.bincount(numbers).tolist()) if times}


class Duplicates:
    """Detects texts that occurred among the last few hundred, by their hash.

    A hash selects one of ``_PLACES`` places and stays there until another text takes it, for about as many texts as
    there are places. A text's share of the traffic therefore determines how often it is found, whether one worker
    gets all traffic or several share it.
    """

    def __init__(self) -> None:
        self._places = np.zeros(_PLACES, dtype=np.int64)
        self._seen = 0

    def forget(self) -> None:
        """Start anew, after texts that were not seen."""
        self._seen = 0

    def see(self, keys: Sequence[int]) -> Numbers:
        """Return for each text, given by its ``key``, 1 if it occurred recently, else 0.

        The first texts are left out of the result, because most places are still empty.
        """
        came = np.array(keys, dtype=np.int64)
        at = came & (_PLACES - 1)
        order = at.argsort(kind="stable")
        came, at = came[order], at[order]
        before = self._places[at]
        is_like = np.flatnonzero(at[1:] == at[:-1])
        before[is_like + 1] = came[is_like]
        self._places[at] = came  # the last of several with one place stays
        found = np.empty(len(at), dtype=np.int64)
        found[order] = came == before
        new, self._seen = max(0, _FILLED - self._seen), self._seen + len(at)
        return found[new:]


def key(text: Text) -> int:
    """Return a text's hash."""
    if len(text) <= _MAX_HASHED and type(text) is str:
        return hash(text)
    return hash((text[:_MAX_HASHED], len(text))) if type(text) is str else hash((key(text[0]), key(text[1])))


class Sample:
    """Draws a random share, so that at most about ``most`` items a second remain."""

    def __init__(self, most: int, chance: Callable[[], float], clock: Callable[[], float] = time.monotonic) -> None:
        self._most, self._chance, self._clock = most, chance, clock
        self._began, self._came = clock(), 0
        self.share = 1.0
        """The share that is drawn at present."""
        self._log_rest = 0.0
        """Logarithm of the share that is not drawn."""
        self._skipped = 0
        """Items to skip until the next one is drawn."""

    def of(self, listed: Sequence[T], number: int = 0) -> Sequence[T]:
        """Return a sample of ``listed``, always less than twice ``most``; ``number`` overrides its length as the load.

        The share follows from the rate of the last second, or of the last ``2 * most`` items if they came sooner, so
        that a sudden load is sampled at once.
        """
        now = self._clock()
        took = now - self._began
        if took >= 1 or self._came >= 2 * self._most:
            self.share = min(1.0, self._most * max(took, _LEAST_S) / max(1, self._came))
            self._log_rest = math.log1p(-self.share) if self.share < 1 else 0.0
            self._began, self._came, self._skipped = now, 0, self._gap()
        length = len(listed)
        self._came += number if number > length else length
        if self._skipped >= length:  # at a high rate mostly: no item is drawn
            self._skipped -= length
            return ()
        if self.share < 1:
            listed = self._drawn(listed)
        step = len(listed) // self._most
        return listed if step <= 1 else listed[int(self._chance() * step) :: step]

    def _drawn(self, listed: Sequence[T]) -> Sequence[T]:
        # Draw the gaps between items: one random number per drawn item instead of one per item.
        at, drawn = self._skipped, []
        while at < len(listed):
            drawn.append(listed[at])
            at += 1 + self._gap()
        self._skipped = at - len(listed)
        return drawn

    def _gap(self) -> int:
        return int(math.log(1 - self._chance()) / self._log_rest) if self.share < 1 else 0


class Runs:
    """Selects runs of consecutive texts, on average at most ``most`` texts a second.

    At lower rates, runs follow each other without a gap.
    """

    def __init__(self, most: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._most, self._clock = most, clock
        self._left, self._next = 0, -math.inf
        self._has_gap = self.is_first = False
        """``is_first``: whether the last texts were the first after a gap."""

    def has(self, number: int) -> bool:
        """Return whether the next ``number`` texts belong to a run."""
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
"""Adds the count of each value of one variable."""
Shares = Callable[[list[float]], object]


class TextCounter:
    """Examines and counts the texts of one version, in groups. For use by one event loop."""

    def __init__(
        self, takes: Mapping[str, Take], sample: Sample, watched: WordWatch | None = None, unusual: Shares | None = None
    ) -> None:
        """``takes`` maps each variable that is counted to its function; others are not examined.

        ``watched`` counts words, ``unusual`` takes the shares of unusual words.
        """
        self._takes = takes
        self._sample = sample
        self._recent = Duplicates() if variables.DUPLICATE in takes else None
        self._watched, self._unusual = watched, unusual
        self._drawn: list[str] = []
        """Beginnings of sampled texts."""
        self._keys: list[int] = []
        """Keys of texts that are checked for duplicates."""

    def see(self, texts: Sequence[Text]) -> None:
        """Collect a sample of these texts."""
        self._drawn += map(beginning, self._sample.of(texts))
        if len(self._drawn) >= _AT_ONCE:
            self._count()

    def follow(self, texts: Sequence[Text], *, is_first: bool = False) -> None:
        """Collect consecutive texts for the search for duplicates; ``is_first``: texts before them were skipped."""
        if self._recent is None:
            return
        if is_first:
            self._repeat()
            self._recent.forget()
        self._keys += map(key, texts)
        if len(self._keys) >= _AT_ONCE:
            self._repeat()

    def flush(self) -> None:
        """Count what was collected."""
        self._repeat()
        self._count()

    def _repeat(self) -> None:
        keys, self._keys = self._keys, []
        if keys and self._recent is not None:
            self._take(variables.DUPLICATE, self._recent.see(keys))

    def _count(self) -> None:
        texts, self._drawn = self._drawn, []
        for start in range(0, len(texts), _AT_ONCE):
            examined = examine(texts[start : start + _AT_ONCE])
            for name, numbers in examined.numbers.items():
                self._take(name, numbers)
            if self._watched is not None:
                shares, risen = self._watched.see(examined.words)
                self._take(variables.RISEN, risen)
                if self._unusual is not None:
                    self._unusual(shares.tolist())

    def _take(self, name: str, numbers: Numbers) -> None:
        take = self._takes.get(name)
        if take is not None and len(numbers):
            take(counted(name, numbers))


def learned(listed: Sequence[Text]) -> tuple[Words | None, list[float], Mapping[str, int]]:
    """Learn frequent words from half of a data set at most; return them, and what the other texts are measured by.

    That is each other text's share of unusual words, and the number of texts per value of ``RISEN``. Texts that words
    were learned from would measure too well, so they are left out. The texts must be in random order. The words are
    None if there are too few texts.
    """
    shares: list[float] = []
    risen: Counter[str] = Counter()

    def begin() -> None:
        shares.clear()
        risen.clear()

    watched = WordWatch(None, begin, learned_at=(len(listed) // 2 - _BETWEEN_LOOKS,))
    takes: Mapping[str, Take] = {variables.RISEN: risen.update}
    looks = TextCounter(takes, Sample(len(listed) + 1, lambda: 0.0), watched, shares.extend)
    for text in listed:
        looks.see([text])
    looks.flush()
    return watched.usual(), shares, risen

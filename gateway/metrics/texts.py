"""What texts look like: script, language, letter case, whether they were seen lately, and the words they are made of.

Only a text's beginning is looked at (``MOST_CHARS``), so that no text costs more than another; many texts at once:
numpy finds the scripts of a hundred for the price of a few. At most ``MOST_A_SECOND`` of a version are, by chance.
No text is kept longer than until it is counted.

Public: ``deploy`` may import it, to write references of bundles.
"""

from __future__ import annotations

import time
import unicodedata
from array import array
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache
from itertools import chain, pairwise
from typing import Final, TypeVar

import numpy as np
from numpy.typing import NDArray

from gateway.metrics import variables
from gateway.metrics.languages import FUNCTION_WORDS, OF_SCRIPT, SCRIPTS
from gateway.metrics.words import Watched

MOST_CHARS: Final = 200
"""Characters of a text that are looked at: about thirty words."""
NONE: Final = "none"
"""A text without letters, or of no language that is known."""
BOOLEANS: Final = ("false", "true")
CASES: Final = ("lower", "upper", "title", "mixed", NONE)
SCRIPT_NAMES: Final = (NONE, *SCRIPTS)
LANGUAGES: Final = (*chain.from_iterable(FUNCTION_WORDS.values()), *OF_SCRIPT.values(), NONE)

_LATIN: Final = "latin"
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
_AT_ONCE: Final = 64

T = TypeVar("T")
Text = str | tuple[str, str]
"""What is encoded as one row."""


def beginning(text: Text) -> str:
    """Return what is looked at of a text, of both if it is a pair."""
    if type(text) is tuple:
        half = MOST_CHARS // 2
        return f"{text[0][:half]} {text[1][:half]}"
    return text[:MOST_CHARS]  # type: ignore[return-value]  # of a plain str


def letter_case(text: str) -> str:
    """Return the class of a text's letters (``CASES``); scripts without case have none."""
    if text.islower():
        return "lower"
    if text.isupper():
        return "upper"
    if text.lower() == text:
        return NONE
    return "title" if text.istitle() else "mixed"


def scripts(texts: Sequence[str]) -> list[str]:
    """Return the script that most letters of each text are in."""
    found = [_LATIN] * len(texts)
    others = [i for i, text in enumerate(texts) if not text.isascii() or text.upper() == text.lower()]
    if others:
        for i, script in zip(others, _scripts([texts[i] for i in others]), strict=True):
            found[i] = script
    return found


def _scripts(texts: Sequence[str]) -> list[str]:
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
    most = counts.argmax(axis=1)
    kana = SCRIPT_NAMES.index("kana")
    most[counts[:, kana] > _LEAST_KANA * counts.sum(axis=1)] = kana
    return [SCRIPT_NAMES[i] for i in most.tolist()]


@cache
def _table() -> NDArray[np.uint8]:
    """The script of every character of the basic plane, as its number among the names."""
    table = np.zeros(0x10000, dtype=np.uint8)
    for number, ranges in enumerate(SCRIPTS.values(), 1):
        for first, last in ranges:
            table[first : last + 1] = number
    return table


def words(text: str, script: str = _LATIN) -> set[str]:
    """Return the different words of a text: in small letters, without punctuation, every digit a 0."""
    if text.isascii():
        plain = text.lower().encode().translate(_PLAIN).decode()
    else:
        plain = text.lower().translate(_characters())
    if script not in _UNSPACED:
        return set(plain.split())
    return {a + b for part in plain.split() for a, b in pairwise(part)} or set(plain.split())


def language(found: set[str], script: str) -> str:
    """Return the language of a text, given its words: the one with the most function words among them."""
    if script not in FUNCTION_WORDS:
        return OF_SCRIPT.get(script, NONE)
    known, votes = _function_words(script)
    counted = sum([votes[word] for word in found & known]).to_bytes(len(LANGUAGES), "little")
    most = max(counted)
    return LANGUAGES[counted.index(most)] if most else NONE


@cache
def _function_words(script: str) -> tuple[frozenset[str], dict[str, int]]:
    """All of one script, and the votes of each: a number with a byte per language, so that adding counts all at once.

    A word that only one language has says twice as much as one that it shares. A text's few words fill no byte.
    """
    languages: dict[str, list[str]] = {}
    for code, listed in FUNCTION_WORDS[script].items():
        for word in listed.split():
            languages.setdefault(word, []).append(code)
    votes = {
        word: sum((2 if len(codes) == 1 else 1) << 8 * LANGUAGES.index(code) for code in codes)
        for word, codes in languages.items()
    }
    return frozenset(votes), votes


class _Characters(dict[int, str]):
    """What each character is in a word: itself, a digit, or a space between words."""

    def __missing__(self, code: int) -> str:
        kind = unicodedata.category(chr(code))[0]
        found = self[code] = chr(code) if kind in "LM" else "0" if kind == "N" else " "
        return found


_PLAIN: Final = bytes(ord(_Characters()[code]) if code < 128 else code for code in range(256))
"""The same of plain ASCII."""


@cache
def _characters() -> _Characters:
    return _Characters()


class Recent:
    """Says whether a text was among the last few hundred, by its hash alone.

    Every text has one of ``_PLACES`` places, and is remembered until another text with the same place comes: for about
    as many texts as there are places. A text that is a share of the traffic is found as often whether one worker sees
    the traffic or each of several a part of it.
    """

    def __init__(self) -> None:
        self._places = array("q", bytes(8 * _PLACES))
        self._seen = 0

    def see(self, texts: Iterable[Text]) -> list[bool]:
        """Say of each text whether it was seen; of the first ones, when most places are empty, nothing."""
        places, found = self._places, []
        for text in texts:
            key = _key(text)
            place = key % _PLACES
            found.append(places[place] == key)
            places[place] = key
        new, self._seen = max(0, _FILLED - self._seen), self._seen + len(found)
        return found[new:]


def _key(text: Text) -> int:
    if type(text) is tuple:
        return hash((_key(text[0]), _key(text[1])))
    return hash(text) if len(text) <= _MOST_HASHED else hash((text[:_MOST_HASHED], len(text)))


class Sample:
    """Draws a share of what comes, so that at most about ``most`` a second are left."""

    def __init__(self, most: int, chance: Callable[[], float], clock: Callable[[], float] = time.monotonic) -> None:
        self._most, self._chance, self._clock = most, chance, clock
        self._began, self._came = clock(), 0
        self._share = 1.0

    def of(self, texts: Sequence[T]) -> Sequence[T]:
        """Return some of ``texts``, or of what else comes, and never twice ``most``.

        They are as large a share as the last second's rate allows.
        """
        now = self._clock()
        if now - self._began >= 1:
            self._share = min(1.0, self._most * (now - self._began) / max(1, self._came))
            self._began, self._came = now, 0
        self._came += len(texts)
        share, chance = self._share, self._chance
        if share < 1:
            texts = [text for text in texts if chance() < share]
        step = len(texts) // self._most
        return texts if step <= 1 else texts[int(chance() * step) :: step]


Take = Callable[[list[str]], object]
"""Counts values of one variable."""
Numbers = Callable[[list[float]], object]


class Looks:
    """Takes the texts of one version, and counts what they look like, many at a time. One event loop calls it."""

    def __init__(
        self, takes: Mapping[str, Take], sample: Sample, watched: Watched | None = None, unusual: Numbers | None = None
    ) -> None:
        """``takes`` are the variables that count, by name: those that are missing are not looked for.

        ``watched`` counts the words, ``unusual`` takes the shares of unusual ones.
        """
        self._takes = takes
        self._sample = sample
        self._recent = Recent() if variables.DUPLICATE in takes else None
        self._watched, self._unusual = watched, unusual
        self._needs_words = variables.LANGUAGE in takes or watched is not None
        self._pending: list[str] = []

    def see(self, texts: Sequence[Text]) -> None:
        """Count these texts, or some of them."""
        if self._recent is not None:
            # All of them: of a sample, less would be seen again the more come.
            self._takes[variables.DUPLICATE]([BOOLEANS[seen] for seen in self._recent.see(texts)])
        self._pending += [beginning(text) for text in self._sample.of(texts)]
        if len(self._pending) >= _AT_ONCE:
            self.carry()

    def carry(self) -> None:
        """Count what is pending."""
        texts, self._pending = self._pending, []
        if not texts:
            return
        written = scripts(texts)
        found = {variables.SCRIPT: written, variables.CASE: [letter_case(text) for text in texts]}
        if self._needs_words:
            of_each = [words(text, script) for text, script in zip(texts, written, strict=True)]
            found[variables.LANGUAGE] = [language(one, script) for one, script in zip(of_each, written, strict=True)]
            if self._watched is not None:
                shares, found[variables.RISEN] = self._watched.see(of_each)
                if self._unusual is not None:
                    self._unusual(shares)
        for name, values in found.items():
            if name in self._takes:
                self._takes[name](values)

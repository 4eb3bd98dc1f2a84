"""The built-in variables of text tasks: tokens, language, letter case and words of texts; labels, scores, embeddings.

Texts are drawn before they are looked at: about ``MAX_A_SECOND`` a second and worker, shared by the versions that have
some. Only a text's beginning is looked at (``MAX_CHARS``), and no text is kept. Tokens, labels and scores are known
anyway; they are counted of up to ``MAX_COUNTED`` texts a second and version. ``watch`` passes on requests that were
answered. An unreadable result costs only its own count. For use by one event loop.

Public: ``deploy`` may import it, to write references of texts.
"""

from __future__ import annotations

import math
import re
import time
import unicodedata
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence, Set
from functools import cache, lru_cache, partial
from itertools import chain
from typing import Any, Final, TypeVar

from gateway.metrics import catalog, embeddings, variables
from gateway.metrics.declared import MAX_BUCKETS, MAX_LABEL_CHARS
from gateway.metrics.drift import MAX_WORDS, Mean, Words
from gateway.metrics.languages import FUNCTION_WORDS, OF_SCRIPT, SCRIPTS
from gateway.metrics.served import Served
from gateway.metrics.variable_counts import Enum, LateScalar, Scalar, VariableSeries
from gateway.trace import TextRow, Trace

MAX_CHARS: Final = 200
"""Characters of a text that are looked at: about thirty words."""
MAX_A_SECOND: Final = 20.0
"""Texts that a worker looks at per second; of more, a random sample."""
MAX_COUNTED: Final = 1000.0
"""Texts of a version whose tokens and answers are counted per second."""
LEARNED: Final = 1000
"""Texts whose most frequent words are the usual ones, if there is no reference."""
NONE: Final = "none"
"""A text without letters, or in an unknown language."""
CASES: Final = ("lower", "upper", "title", "mixed", NONE)
LANGUAGES: Final = (*chain.from_iterable(FUNCTION_WORDS.values()), *OF_SCRIPT.values(), NONE)

_LEAST: Final = 5
"""Fewest texts with a word for it to be usual."""
_LEAST_KANA: Final = 0.1
"""A text with this share of kana is Japanese, although most of its letters may be Han."""
_UNSPACED: Final = ("han", "kana", "thai", "lao", "khmer", "myanmar")
"""Scripts without spaces between words: pairs of letters count as words."""
_PLAIN_WORD: Final = re.compile(r"[a-z]+|[0-9]+")
_LEAST_S: Final = 0.05
"""Shortest time over which a rate is computed; less may be a single request."""
_TOGETHER: Final = 16
"""Requests or rows that are drawn at a high rate before they are counted: one by one takes three times as long."""

T = TypeVar("T")
Text = str | tuple[str, str]
"""A text or pair of texts that is encoded as one row."""


def beginning(text: Text) -> str:
    """Return the part of a text that is looked at; of a pair, of both texts."""
    if isinstance(text, tuple):
        half = MAX_CHARS // 2
        return f"{text[0][:half]} {text[1][:half]}"
    return text[:MAX_CHARS]


def letter_case(text: str) -> str:
    """Return a text's letter case, one of ``CASES``."""
    if text.islower():
        return "lower"
    if text.isupper():
        return "upper"
    if text.lower() == text:
        return NONE
    return "title" if text.istitle() else "mixed"


def words_of(text: str) -> frozenset[str]:
    """Return a text's words: small letters without punctuation, any number as 0."""
    found = (_PLAIN_WORD if text.isascii() else _word()).findall(text.lower())
    return frozenset("0" if word[0].isdecimal() else word for word in found)


@cache
def _word() -> re.Pattern[str]:
    unspaced = "".join(f"{chr(a)}-{chr(b)}" for script in _UNSPACED for a, b in SCRIPTS[script])
    last = max(b for ranges in SCRIPTS.values() for _, b in ranges if b < 0x2E80)  # of scripts whose marks matter here
    marks = "".join(chr(code) for code in range(0x300, last) if unicodedata.category(chr(code)).startswith("M"))
    return re.compile(rf"[{unspaced}]{{1,2}}|(?:[^\W\d_{unspaced}]|[{marks}])+|\d+")


def language(text: str, words: Set[str]) -> str:
    """Return the language with the most function words among a text's words, in the script of most of its letters."""
    script = _script(text)
    votes = Counter[str]()
    for word in words:
        votes.update(_votes().get((script, word), {}))
    if votes:
        return max(votes, key=lambda code: (votes[code], -LANGUAGES.index(code)))
    return OF_SCRIPT.get(script, NONE)


def _script(text: str) -> str:
    letters = Counter(map(_script_of, text))
    del letters[""]
    if letters["kana"] > _LEAST_KANA * letters.total():
        return "kana"
    return max(letters, key=lambda script: (letters[script], script), default="")


@lru_cache(maxsize=8192)
def _script_of(letter: str) -> str:
    code = ord(letter)
    return next((name for name, ranges in SCRIPTS.items() if any(a <= code <= b for a, b in ranges)), "")


@cache
def _votes() -> Mapping[tuple[str, str], Mapping[str, int]]:
    """Votes by script and word. A word that only one language of its script has counts twice."""
    found: dict[tuple[str, str], dict[str, int]] = {}
    for script, languages in FUNCTION_WORDS.items():
        saying = Counter(word for listed in languages.values() for word in set(listed.split()))
        for code, listed in languages.items():
            for word in set(listed.split()):
                found.setdefault((script, word), {})[code] = 2 if saying[word] == 1 else 1
    return found


class UsualWords:
    """The usual words of one version's texts: those of the reference, else the most frequent of the first texts."""

    def __init__(self, reference: Words | None) -> None:
        self.words = reference
        self._usual: frozenset[str] | None = None
        self._counts, self._texts = Counter[str](), 0

    def unusual(self, words: Set[str]) -> float | None:
        """Return the share of a text's words that are not usual; None without words, and while words are learned."""
        if self.words is None:
            self._learn(words)
            return None
        if self._usual is None:  # made with the first text: there may be hundreds of other versions
            self._usual = frozenset(self.words.usual)
        return len(words - self._usual) / len(words) if words else None

    def _learn(self, words: Set[str]) -> None:
        self._counts.update(words)
        self._texts += 1
        if self._texts >= LEARNED:
            often = [word for word, times in self._counts.items() if times >= _LEAST]
            often.sort(key=lambda word: (-self._counts[word], word))
            self.words = Words(float(self._texts), (*often[:MAX_WORDS],))
            self._counts.clear()


class Sample:
    """Draws a random share, so that at most about ``most()`` items a second remain."""

    def __init__(
        self, most: Callable[[], float], chance: Callable[[], float], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._limit, self._chance, self._clock = most, chance, clock
        self._most, self._began, self._came = 0.0, -math.inf, 0
        self.share = 1.0
        """The share that is drawn at present."""
        self._log_rest = 0.0
        """Logarithm of the share that is not drawn."""
        self._skipped = 0
        """Items to skip until the next one is drawn."""

    def of(self, listed: Sequence[T], number: int = 0) -> Sequence[T]:
        """Return a sample of ``listed``, always less than twice the limit; ``number`` overrides its length as the load.

        The share follows from the rate of the last second, or of the last items if twice as many as the limit came
        sooner, so that a sudden load is sampled at once.
        """
        now = self._clock()
        took = now - self._began
        if took >= 1 or self._came >= 2 * self._most:
            self._most = self._limit()
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
        step = int(len(listed) / self._most)
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


class Budget:
    """Shares a number per second evenly among those that asked within about the last second."""

    def __init__(self, most: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._most, self._clock = most, clock
        self._began = -math.inf
        self._before, self._lately = set[int](), set[int]()

    def of(self, who: int) -> float:
        """Return how many per second ``who`` may take now."""
        now = self._clock()
        if now >= self._began + 1:
            self._before = self._lately if now < self._began + 2 else set()
            self._lately, self._began = set(), now
        self._lately.add(who)
        return self._most / len(self._before | self._lately)


class TextVariables:
    """The built-in variables of one version of a text task."""

    __slots__ = ("_case", "_cosine", "_cosines", "_drawn", "_has_labels", "_label", "_language", "_score", "_served",
                 "_texts", "_tokens", "_unknown", "_unusual", "_vectors", "_waiting", "_waiting_rows",
                 "_words")  # fmt: skip

    def __init__(
        self, served: Served, numbers: VariableSeries, taken: Collection[str], chance: Callable[[], float],
        watches_words: bool, clock: Callable[[], float], budget: Budget,
    ) -> None:  # fmt: skip
        reference = served.reference
        numbers.pending.append(self.flush)  # before the variables', which it adds to

        def scalar(name: str, bounds: tuple[float, ...]) -> Scalar | None:
            return None if name in taken else Scalar(name, numbers, reference.get(name), bounds)

        def late(name: str, bounds: tuple[float, ...]) -> LateScalar:
            return LateScalar(lambda: scalar(name, bounds), begins=name in reference)

        def enum(name: str, values: Sequence[str], expected: Collection[str] = ()) -> Enum | None:
            return None if name in taken else Enum(name, numbers, reference.get(name), values, expected)

        labels = [label[:MAX_LABEL_CHARS] for label in served.labels[:MAX_BUCKETS]]
        self._served, self._has_labels = served, bool(labels)
        self._tokens = scalar(variables.TOKENS, catalog.TEXT_TOKEN_BUCKETS)
        self._unknown = scalar(variables.UNKNOWN, catalog.RARE_RATIO_BUCKETS)
        self._language = enum(variables.LANGUAGE, (), LANGUAGES)
        self._case = enum(variables.CASE, (), CASES)
        self._unusual = late(variables.UNUSUAL, catalog.WORD_RATIO_BUCKETS)
        self._words = UsualWords(served.words) if watches_words else None
        self._label = enum(variables.LABEL, labels) if labels else None
        self._score = scalar(variables.SCORE, catalog.RATIO_BUCKETS) if labels else None
        self._cosine = late(variables.COSINE, catalog.COSINE_BUCKETS)
        self._cosines = embeddings.Cosines(served.mean, self._cosine.take_all)
        share = partial(budget.of, id(self))
        self._texts, self._vectors = Sample(share, chance, clock), Sample(share, chance, clock)
        self._drawn = Sample(lambda: MAX_COUNTED, chance, clock)
        self._waiting: list[Trace] = []
        """Drawn requests that are not counted yet."""
        self._waiting_rows = 0

    @property
    def words(self) -> Words | None:
        """The usual words; None until they are known."""
        return None if self._words is None else self._words.words

    @property
    def mean(self) -> Mean | None:
        """The mean that embeddings are compared with; None until it is known."""
        return self._cosines.mean

    def forget(self, served: Served) -> None:
        """Reset what means nothing beside the words or the mean of ``served``, which replaces this version."""
        if served.words != self._served.words:
            self._unusual.begin()
        if served.mean != self._served.mean:
            self._cosine.begin()

    def look(self, traces: Sequence[Trace]) -> None:
        """Count the texts and results of requests. Answers from the response cache come without texts."""
        drawn = self._drawn.of(traces, sum([trace.rows for trace in traces]))
        if not drawn:
            return
        self._waiting += drawn
        self._waiting_rows += sum([trace.rows for trace in drawn])
        # At a high rate only one or two of those answered together are drawn: they wait for others, some milliseconds.
        if self._drawn.share == 1 or self._waiting_rows >= _TOGETHER or len(self._waiting) >= _TOGETHER:
            self.flush()

    def flush(self) -> None:
        """Count the requests that wait."""
        traces, self._waiting, self._waiting_rows = self._waiting, [], 0
        if not traces:
            return
        if rows := [row for trace in traces if trace.encoded for row in trace.encoded]:
            self._see_tokens(rows)
        self._see_texts(self._texts.of(_texts_of(traces)))
        if not self._has_labels:
            self._see_vectors(traces)
            return
        results = list(chain.from_iterable(map(_results_of, traces)))
        if not _can(self._see_results, results):
            for result in results:  # a result has an unexpected form: count the others one by one
                if type(result) is dict and "entities" in result:
                    _can(self._see_entities, result["entities"])
                else:
                    _can(self._see_results, [result])

    def _see_tokens(self, rows: Sequence[TextRow]) -> None:
        if self._tokens is not None:
            self._tokens.take_all([row.n_tokens for row in rows])
        if self._unknown is not None:
            self._unknown.take_all([row.n_unknown / row.n_tokens if row.n_tokens else 0.0 for row in rows])

    def _see_texts(self, texts: Sequence[Text]) -> None:
        for text in map(beginning, texts):
            words = words_of(text)
            if self._language is not None:
                self._language.take(language(text, words))
            if self._case is not None:
                self._case.take(letter_case(text))
            if self._words is not None and (share := self._words.unusual(words)) is not None:
                self._unusual.take_all([share])

    def _see_vectors(self, traces: Sequence[Trace]) -> None:
        vectors = [
            vector
            for trace in traces
            # A truncated vector points in another direction than the whole one.
            if trace.prepared is None or not trace.prepared.request.options.get("truncate_dim")
            for vector in embeddings.vectors_of(trace.answer)
        ]
        if vectors:
            _can(self._cosines.see, self._vectors.of(vectors))

    def _see_entities(self, entities: Iterable[Mapping[str, Any]]) -> None:
        """Count entities, and likewise single tokens by the entity that they belong to."""
        for entity in entities:
            if self._label is not None:
                label = entity.get("entity_group") or str(entity["entity"])
                self._label.take(label.removeprefix("B-").removeprefix("I-"))
            if self._score is not None:
                self._score.take(entity["score"])

    def _see_results(self, results: Sequence[Mapping[str, Any]]) -> None:
        # Read everything before counting anything, so that an exception leaves no partial count.
        labels = [str(result["label"]) for result in results]
        scores = [float(result["score"]) for result in results]
        if self._label is not None:
            self._label.take_all(labels)
        if self._score is not None:
            self._score.take_all(scores)


def _can(count: Callable[[Any], None], what: Any) -> bool:
    try:
        count(what)
    except Exception:  # noqa: BLE001 - one unreadable result must not keep the others from being counted
        return False
    return True


def _texts_of(traces: Sequence[Trace]) -> list[Text]:
    # A request of token ids has empty texts.
    return [text for trace in traces if trace.prepared is not None for text in trace.prepared.request.texts if text]


def _results_of(trace: Trace) -> Sequence[Any]:
    """Return the results as they would be without the request's parameters."""
    if trace.prepared is not None and trace.prepared.unaltered is not None:
        return trace.prepared.unaltered
    if type(trace.answer) is not dict:
        return ()
    several = trace.answer.get("results")
    return (trace.answer,) if several is None else several

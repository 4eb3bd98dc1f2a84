"""Caches token ids by word, and answers texts whose words are all known without the tokenizer.

`tokenizer` puts a WordCache in front of the `tokenizers` library if `words.rules` understands the tokenizer, and passes
each batch to it first. The cached ids were learned from that tokenizer, one word at a time, so there is no second
tokenization that could differ (except the spelling of plain ASCII words in `words.rules`, one page of code). The rules
say for which words a text's ids are the concatenation of its words' ids. Texts with other words are returned
unanswered.

Thread-safe: words are read from and added to the current dictionary without a lock; learning takes one for each batch,
and beginning a new generation. The library releases the interpreter lock; the cache holds it, but for a tenth of the
time.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from threading import Lock
from typing import Final

from tokenizers import Tokenizer

from preprocessing.framing import Framing
from preprocessing.types import Encoded, Texts, pack
from preprocessing.words.rules import understand

DEFAULT_MAX_WORDS: Final = 200_000

_LONGEST_WORD: Final = 64
"""In characters. Longer words are tokenized each time."""
_MAX_TOKENS: Final = 32
"""Most tokens of a cached word. Together with its length, this keeps an entry below a kilobyte."""


class WordCache:
    """The cached words of one tokenizer.

    `hits` counts texts answered from the cache, `learned` texts for which only unknown words were tokenized, `misses`
    texts left to the tokenizer; their sum is all texts. Concurrent counts may lose one.
    """

    def __init__(self, tokenizer: Tokenizer, framing: Framing, *, max_words: int = DEFAULT_MAX_WORDS) -> None:
        """Raises NotUnderstood if the tokenizer's words are not independent."""
        self._rules = understand(tokenizer)
        self._framing = framing
        # Model, normalizer and pre-tokenizer are shared with `tokenizer`, not copied; the learner does not truncate.
        self._learner = Tokenizer(tokenizer.model)
        if tokenizer.normalizer is not None:
            self._learner.normalizer = tokenizer.normalizer
        self._learner.pre_tokenizer = tokenizer.pre_tokenizer
        self._marks_first = self._rules.first_differs
        # Two generations: a word found in the old one moves to the young one. When the young one is full it becomes the
        # old one, and words that were not used meanwhile are dropped. A hit costs only the lookup.
        self._young = _Generation(self._find_out)
        self._old = _Generation(self._find_out)
        self.max_words = max_words
        self._generation = max(max_words // 2, 1)
        self._lock = Lock()
        self.hits = self.learned = self.misses = 0

    @property
    def words(self) -> int:
        """Number of cached words."""
        return len(self._young) + len(self._old)

    def forget_counts(self) -> None:
        """Reset the counts."""
        self.hits = self.learned = self.misses = 0

    def encode_batch(self, texts: Texts) -> list[Encoded | None]:
        """Return one row per text or pair, in order; None where only the tokenizer knows."""
        rows: list[Encoded | None] = []
        unanswered: list[int] = []
        find, marks_first, row = self._young.__getitem__, self._marks_first, self._framing.row
        halves: dict[str, bytes | None] = {}
        for text in texts:
            try:
                if type(text) is str:
                    words = text.split(" ")
                    if marks_first:
                        words[0] = " " + words[0]
                    rows.append(row(b"".join(map(find, words))))
                else:
                    first, second = self._halves_of(text)
                    rows.append(self._framing.pair_row(self._half(first, halves), self._half(second, halves)))
            except (KeyError, _NotMine):
                unanswered.append(len(rows))
                rows.append(None)
        self.hits += len(rows) - len(unanswered)
        if unanswered:
            learned = self._learn(texts, rows, unanswered)
            self.learned += learned
            self.misses += len(unanswered) - learned
        return rows

    # --- words --------------------------------------------------------------------------------------------------------

    def _cut(self, text: str) -> list[str]:
        """Return the words of a text.

        If the first word of a text can differ from the same word after a space, it is marked by a leading space, which
        no word has.
        """
        words = text.split(" ")
        if self._marks_first:
            words[0] = " " + words[0]
        return words

    def _halves_of(self, pair: object) -> tuple[str, str]:
        if type(pair) is not tuple or len(pair) != 2 or not self._framing.knows_pairs:
            raise _NotMine
        first, second = pair
        if not isinstance(first, str) or not isinstance(second, str):
            raise _NotMine
        return first, second

    def _half(self, text: str, known: dict[str, bytes | None]) -> bytes:
        """Return the ids of one text of a pair; computed once, because one text is paired with many others."""
        if text not in known:
            known[text] = None
            known[text] = b"".join(map(self._young.__getitem__, self._cut(text)))
        ids = known[text]
        if ids is None:  # it could not be answered the first time either
            raise _NotMine
        return ids

    def _as_text(self, word: str) -> str:
        """Convert between a word and the text with its ids: adds or removes a leading space."""
        if not self._marks_first:
            return word
        return word[1:] if word.startswith(" ") else " " + word

    def _find_out(self, word: str) -> bytes:
        """Return the ids of a word that is not in the young generation, without the tokenizer.

        Raises KeyError if only the tokenizer knows.
        """
        ids = self._young.get(word)  # another thread may have added it since
        if ids is not None:
            return ids
        ids = self._old.get(word)
        if ids is None:
            rules = self._rules
            if rules.ascii_pieces is None:
                raise KeyError(word)
            text = self._as_text(word) if self._marks_first else word
            if not rules.allow(text.removeprefix(" ")):
                raise KeyError(word)
            pieces = None if text.isalnum() else rules.pieces(text)  # which looks at this last
            if pieces is None:
                ids = None if rules.spelling is None else rules.spelling.spell(word)
            else:
                keys = map(self._as_text, pieces) if self._marks_first else pieces
                ids = b"".join(map(self._young.__getitem__, keys))
            if ids is None:
                raise KeyError(word)
        if len(word) <= _LONGEST_WORD and len(ids) <= _MAX_TOKENS * 8:
            # Adding takes no lock: the worst is that each thread adds one word too many, or one to the old generation.
            if len(self._young) >= self._generation:
                with self._lock:
                    if len(self._young) >= self._generation:
                        self._turn()
            self._young[word] = ids
        return ids

    def _turn(self) -> None:
        """Begin a new generation; call with the lock held."""
        self._old = self._young
        self._young = _Generation(self._find_out)

    def _learn(self, texts: Texts, rows: list[Encoded | None], unanswered: Sequence[int]) -> int:
        """Tokenize the unknown words of these texts in one call, cache them, and fill the rows; return how many."""
        lesson = _Lesson(self._young)
        parts_of: list[tuple[int, tuple[str, ...]]] = []
        cuts: dict[str, list[str] | None] = {}  # each distinct text once
        for index in unanswered:
            text = texts[index]
            try:
                parts: tuple[str, ...] = (text,) if isinstance(text, str) else self._halves_of(text)
                for part in parts:
                    if part not in cuts:
                        cuts[part] = None
                        words = self._cut(part)
                        self._survey(words, lesson)
                        cuts[part] = words
                    elif cuts[part] is None:
                        raise _NotMine
            except _NotMine:
                continue
            parts_of.append((index, parts))
        try:
            self._ask(lesson)
        except BaseException as error:
            # The library refused a text, or panicked, which arrives as a BaseException. It will do the same for the
            # whole text, where the error is handled.
            if isinstance(error, Exception) or type(error).__name__ == "PanicException":
                return 0
            raise
        self._keep(lesson.learned)
        framing, young, new = self._framing, lesson.young, lesson.new
        ids = {
            part: b"".join([new[word] if word in new else young[word] for word in words])
            for part, words in cuts.items()
            if words is not None
        }
        for index, parts in parts_of:
            first = ids[parts[0]]
            rows[index] = framing.row(first) if len(parts) == 1 else framing.pair_row(first, ids[parts[1]])
        return len(parts_of)

    def _survey(self, words: Sequence[str], lesson: _Lesson) -> None:
        """Add the unknown words of one text.

        Raises _NotMine if one of them is not allowed, or if most are too long to cache.
        """
        rules, young, new = self._rules, lesson.young, lesson.new
        ask: list[str] = []
        composed: dict[str, list[str]] = {}
        n_long = 0
        for word in [word for word in words if word not in young and word not in new]:
            if word in lesson.asked or word in lesson.composed:
                continue
            try:
                new[word] = self._find_out(word)
                continue
            except KeyError:
                pass
            text = self._as_text(word)
            if not rules.allow(text.removeprefix(" ")):
                raise _NotMine
            if len(word) > _LONGEST_WORD:
                n_long += len(word)
            pieces = rules.pieces(text)
            if pieces is None:
                ask.append(word)
                continue
            composed[word] = keys = [self._as_text(piece) for piece in pieces]
            for key in keys:
                try:
                    new[key] = young[key]
                except KeyError:
                    ask.append(key)
        if n_long and n_long * 2 > sum(map(len, words)):
            raise _NotMine
        lesson.asked.update(dict.fromkeys(ask))
        lesson.composed.update(composed)

    def _ask(self, lesson: _Lesson) -> None:
        """Tokenize the unknown words separately, and join the pieces of composed ones."""
        learned: dict[str, bytes] = {}
        if len(lesson.asked) == 1:
            (word,) = lesson.asked
            encodings = self._learner.encode_batch_fast([self._as_text(word)], add_special_tokens=False)
            learned[word] = pack(encodings[0].ids)
        elif lesson.asked:
            words = list(lesson.asked)
            # As one pre-tokenized text, which takes half the time of separate texts: the library normalizes, divides
            # and tokenizes each member separately, and says which token came from which.
            whole = [self._as_text(word) for word in words]
            encoding = self._learner.encode_batch([whole], is_pretokenized=True, add_special_tokens=False)[0]
            ids: list[list[int]] = [[] for _ in words]
            for id_, owner in zip(encoding.ids, encoding.word_ids, strict=True):
                ids[owner].append(id_)  # type: ignore[index] # every token here comes from a word
            learned.update(zip(words, map(pack, ids), strict=True))
        for word, keys in lesson.composed.items():
            learned[word] = b"".join([learned[key] if key in learned else lesson.new[key] for key in keys])
        lesson.learned = learned
        lesson.new.update(learned)

    def _keep(self, learned: dict[str, bytes]) -> None:
        with self._lock:
            if len(self._young) + len(learned) > self._generation:
                self._turn()
            young = self._young
            room = self._generation - len(young)
            for word, ids in learned.items():
                if room and len(word) <= _LONGEST_WORD and len(ids) <= _MAX_TOKENS * 8:
                    young[word] = ids
                    room -= 1


class _Generation(dict[str, bytes]):
    """Words and their packed ids; missing words are looked up by `find_out`. Entries are never removed."""

    __slots__ = ("_find_out",)

    def __init__(self, find_out: Callable[[str], bytes]) -> None:
        super().__init__()
        self._find_out = find_out

    def __missing__(self, word: str) -> bytes:
        return self._find_out(word)


class _NotMine(Exception):
    """A text that only the tokenizer can answer."""


class _Lesson:
    """The words of some texts while they are being learned."""

    __slots__ = ("asked", "composed", "learned", "new", "young")

    def __init__(self, young: _Generation) -> None:
        self.young = young
        """The generation at the start, so that found words stay found while others learn."""
        self.new: dict[str, bytes] = {}
        self.learned: dict[str, bytes] = {}
        self.asked: dict[str, None] = {}
        self.composed: dict[str, list[str]] = {}

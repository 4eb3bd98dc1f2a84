"""Word to token ids, remembered: answers texts whose words were all seen before without asking the tokenizer.

`tokenizer` puts a WordCache in front of the `tokenizers` library if `word_rules` understands the tokenizer, and
hands it every batch first. What the cache holds was learned from that same tokenizer, one word at a time, so there is
no second tokenization here that could differ (save for the spelling of plain ASCII words by `word_rules`, one page of
code); the rules say for which words a text's ids are the sum of its words'. Texts with any other word come back
unanswered.

It may be called from any thread: readers look up in the dictionary of the moment, only learning takes a lock. It holds
the interpreter lock, if the library lets go of it, but for a tenth of the time (benchmarks/tokenization.py).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from threading import Lock
from typing import Final

from tokenizers import Tokenizer

from preprocessing.framing import Framing
from preprocessing.types import Encoded, Texts, pack
from preprocessing.words.budget import OF_PROCESS, WordBudget
from preprocessing.words.rules import WordRules, understand

DEFAULT_MAX_WORDS: Final = 200_000

_LONGEST_WORD: Final = 64
"""In characters. Longer words are tokenized each time they come."""
_MAX_TOKENS: Final = 32
"""Of a word that is kept. Together with the length, it keeps an entry under a kilobyte whatever a client sends."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheState:
    """What there is to know about a tokenizer's word cache."""

    enabled: bool
    reason: str | None = None
    """Why it is off."""
    kind: str | None = None
    """How texts are cut: `whitespace`, `byte-level` or `metaspace`."""
    words: int = 0
    max_words: int = 0
    hits: int = 0
    learned: int = 0
    misses: int = 0


class WordCache:
    """The words of one tokenizer.

    `hits` counts texts answered without the tokenizer, `learned` texts for which it was asked about unknown words only,
    `misses` texts left to it; together they are all texts. Threads that count at the same instant may lose one.
    """

    def __init__(
        self, tokenizer: Tokenizer, framing: Framing, *, max_words: int = DEFAULT_MAX_WORDS,
        budget: WordBudget = OF_PROCESS, rules: WordRules | None = None,
    ) -> None:  # fmt: skip
        """Raises NotUnderstood if nothing can be said about the tokenizer's words. ``rules`` if they are known."""
        self._rules = understand(tokenizer) if rules is None else rules
        self._framing = framing
        # Model, normalizer and pre-tokenizer are shared with `tokenizer`, not copied; there is no truncation in it.
        self._learner = Tokenizer(tokenizer.model)
        if tokenizer.normalizer is not None:
            self._learner.normalizer = tokenizer.normalizer
        self._learner.pre_tokenizer = tokenizer.pre_tokenizer
        self._marks_first = self._rules.first_differs
        # Two generations: a word found in the old one moves to the young one; when that is full it becomes the old one,
        # and what nobody asked for in the meantime is gone. A hit costs nothing but the look-up.
        self._young = _Generation(self._find_out)
        self._old = _Generation(self._find_out)
        self._max_words = max_words
        self._generation = max(max_words // 2, 1)
        self._lock = Lock()
        self.hits = self.learned = self.misses = 0
        self._asked_before = 0
        self._budget = budget
        budget.add(self)

    def twin(self) -> WordCache:
        """Return one that knows the same rules and no words."""
        return WordCache(
            self._learner, self._framing, max_words=self._max_words, budget=self._budget, rules=self._rules
        )  # fmt: skip

    @property
    def words(self) -> int:
        """How many words it remembers."""
        return len(self._young) + len(self._old)

    def used(self) -> int:
        """See ``budget.Cache``."""
        asked = self.hits + self.learned
        used, self._asked_before = asked - self._asked_before, asked
        return max(used, 0)

    def shrink(self, *, wholly: bool) -> int:
        """See ``budget.Cache``."""
        with self._lock:
            before = self.words
            self._turn()
            if wholly:
                self._turn()
            return before - self.words

    @property
    def state(self) -> CacheState:
        """Sizes and counts of this moment."""
        return CacheState(
            enabled=True,
            kind=self._rules.kind,
            words=self.words,
            max_words=self._generation * 2,
            hits=self.hits,
            learned=self.learned,
            misses=self.misses,
        )

    def forget_counts(self) -> None:
        """Start counting from zero."""
        self.hits = self.learned = self.misses = 0

    def encode_batch(self, texts: Texts) -> list[Encoded | None]:
        """One row per text or pair, in order; None if only the tokenizer can tell."""
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
        """The words of a text. If a text's first word differs from the same word after a space, it is marked by a space
        in front, which no word has.
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
        """The ids of one text of a pair, looked up once: one text goes with many labels or documents."""
        if text not in known:
            known[text] = None
            known[text] = b"".join(map(self._young.__getitem__, self._cut(text)))
        ids = known[text]
        if ids is None:  # it was not answered the first time either
            raise _NotMine
        return ids

    def _as_text(self, word: str) -> str:
        """The text that has a word's ids, or the word that stands for a text: a space less or more."""
        if not self._marks_first:
            return word
        return word[1:] if word.startswith(" ") else " " + word

    def _find_out(self, word: str) -> bytes:
        """The ids of a word that is not in the young generation, without asking the tokenizer; KeyError if only it
        can tell.
        """
        ids = self._young.get(word)  # it may be younger than the generation that was asked
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
            with self._lock:
                if len(self._young) >= self._generation:
                    self._turn()
                self._young[word] = ids
            self._budget.learned(1)
        return ids

    def _turn(self) -> None:
        """A new generation; with the lock held."""
        self._old = self._young
        self._young = _Generation(self._find_out)

    def _learn(self, texts: Texts, rows: list[Encoded | None], unanswered: Sequence[int]) -> int:
        """Tokenize what is unknown of these texts in one call, keep it, and fill their rows; returns how many rows."""
        lesson = _Lesson(self._young)
        parts_of: list[tuple[int, tuple[str, ...]]] = []
        cuts: dict[str, list[str] | None] = {}  # each text once, in however many rows it is
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
            # A text the library refuses, or a panic inside it, which arrives as a BaseException: it will say the same
            # of the whole text, where it is dealt with.
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
        """Add the unknown words of one text; raises _NotMine if there is one that is not allowed, or if they are
        mostly too long to keep.
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
        """Tokenize the unknown words, each for itself, and put composed ones together."""
        learned: dict[str, bytes] = {}
        if len(lesson.asked) == 1:
            (word,) = lesson.asked
            encodings = self._learner.encode_batch_fast([self._as_text(word)], add_special_tokens=False)
            learned[word] = pack(encodings[0].ids)
        elif lesson.asked:
            words = list(lesson.asked)
            # As one pre-tokenized text, which takes half the time of as many texts: the library normalizes, cuts and
            # tokenizes each member for itself, and says which token came from which.
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
        self._budget.learned(len(learned))


class _Generation(dict[str, bytes]):
    """Words and their packed ids, and whom to ask about others. Nothing is ever taken out of it."""

    __slots__ = ("_find_out",)

    def __init__(self, find_out: Callable[[str], bytes]) -> None:
        super().__init__()
        self._find_out = find_out

    def __missing__(self, word: str) -> bytes:
        return self._find_out(word)


class _NotMine(Exception):
    """A text that only the tokenizer can answer for."""


class _Lesson:
    """The words of some texts, while they are learned."""

    __slots__ = ("asked", "composed", "learned", "new", "young")

    def __init__(self, young: _Generation) -> None:
        self.young = young
        """What was found here once stays found, whatever others learn meanwhile."""
        self.new: dict[str, bytes] = {}
        self.learned: dict[str, bytes] = {}
        self.asked: dict[str, None] = {}
        self.composed: dict[str, list[str]] = {}

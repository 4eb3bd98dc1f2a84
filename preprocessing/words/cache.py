"""Caches token ids by word, and answers texts whose words are all known without the tokenizer.

`tokenizer` puts a WordCache in front of the `tokenizers` library if `words.rules` understands the tokenizer, and passes
each batch to it first. The cached ids were learned from that tokenizer, one word at a time, so there is no second
tokenization that could differ (except the spelling of plain ASCII words in `words.rules`, one page of code). The rules
say for which words a text's ids are the concatenation of its words' ids. Texts with other words are returned
unanswered.

Thread-safe: words are read from the current dictionary without a lock; adding a word takes one. The library releases
the interpreter lock; the cache holds it, but for a tenth of the time.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
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
    """The cached words of one tokenizer."""

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
        self._generation = max(max_words // 2, 1)
        self._lock = Lock()

    def encode_batch(self, texts: Texts) -> list[Encoded | None]:
        """Return one row per text or pair, in order; None where only the tokenizer knows."""
        rows: list[Encoded | None] = []
        unanswered: list[int] = []
        find, cut, row = self._young.__getitem__, self._cut, self._framing.row
        halves: dict[str, bytes | None] = {}
        for text in texts:
            try:
                if type(text) is str:
                    rows.append(row(b"".join(map(find, cut(text)))))
                else:
                    first, second = self._halves_of(text)
                    rows.append(self._framing.pair_row(self._half(first, halves), self._half(second, halves)))
            except (KeyError, _NotMine):
                unanswered.append(len(rows))
                rows.append(None)
        if unanswered:
            self._learn(texts, rows, unanswered)
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
        self._keep(word, ids)
        return ids

    def _keep(self, word: str, ids: bytes) -> None:
        if len(word) > _LONGEST_WORD or len(ids) > _MAX_TOKENS * 8:
            return
        with self._lock:
            if len(self._young) >= self._generation:
                self._old, self._young = self._young, _Generation(self._find_out)
            self._young[word] = ids

    def _learn(self, texts: Texts, rows: list[Encoded | None], unanswered: Sequence[int]) -> None:
        """Tokenize the unknown words of these texts in one call, cache them, and fill the rows."""
        young = self._young  # what it has is found in it while others learn
        found: dict[str, bytes] = {}
        unknown: dict[str, list[str]] = {}
        cuts: dict[str, list[str] | None] = {}  # each distinct text once; None: only the tokenizer knows
        parts_of: list[tuple[int, tuple[str, ...]]] = []
        for index in unanswered:
            text = texts[index]
            try:
                parts: tuple[str, ...] = (text,) if isinstance(text, str) else self._halves_of(text)
            except _NotMine:
                continue
            for part in parts:
                if part not in cuts:
                    words = self._cut(part)
                    more = self._unknown_words([w for w in words if w not in young and w not in unknown], found)
                    n_long = sum(len(word) for word in more or () if len(word) > _LONGEST_WORD)
                    is_known = more is not None and n_long * 2 <= sum(map(len, words))  # others are not worth caching
                    cuts[part] = words if is_known else None
                    unknown.update((more or {}) if is_known else {})
            if all(cuts[part] is not None for part in parts):
                parts_of.append((index, parts))
        try:
            found |= self._ask(unknown)
        except BaseException as error:
            # The library refused a text, or panicked, which arrives as a BaseException. It will do the same for the
            # whole text, where the error is handled.
            if isinstance(error, Exception) or type(error).__name__ == "PanicException":
                return
            raise
        ids = {
            part: b"".join([found[word] if word in found else young[word] for word in words])
            for part, words in cuts.items()
            if words is not None
        }
        for index, parts in parts_of:
            first = ids[parts[0]]
            row = self._framing.row(first) if len(parts) == 1 else self._framing.pair_row(first, ids[parts[1]])
            rows[index] = row

    def _unknown_words(self, words: Sequence[str], found: dict[str, bytes]) -> dict[str, list[str]] | None:
        """Return those for which the tokenizer must be asked, with the pieces that it is asked for.

        Adds the others to `found`. None if one of them is not allowed.
        """
        unknown: dict[str, list[str]] = {}
        for word in words:
            try:
                found[word] = self._find_out(word)
            except KeyError:
                text = self._as_text(word)
                if not self._rules.allow(text.removeprefix(" ")):
                    return None
                pieces = self._rules.pieces(text)
                unknown[word] = [word] if pieces is None else [self._as_text(piece) for piece in pieces]
        return unknown

    def _ask(self, unknown: Mapping[str, Sequence[str]]) -> dict[str, bytes]:
        """Tokenize the pieces of unknown words separately, and keep these and those."""
        found: dict[str, bytes] = {}
        ask: list[str] = []
        for piece in dict.fromkeys(piece for pieces in unknown.values() for piece in pieces):
            try:
                found[piece] = self._find_out(piece)
            except KeyError:
                ask.append(piece)
        if ask:
            # As one pre-tokenized text, which takes half the time of separate texts: the library normalizes, divides
            # and tokenizes each member separately, and says which token came from which.
            whole = [self._as_text(piece) for piece in ask]
            encoding = self._learner.encode_batch([whole], is_pretokenized=True, add_special_tokens=False)[0]
            ids: list[list[int]] = [[] for _ in ask]
            for id_, owner in zip(encoding.ids, encoding.word_ids, strict=True):
                ids[owner].append(id_)  # type: ignore[index] # every token here comes from a piece
            found.update(zip(ask, map(pack, ids), strict=True))
        found.update({word: b"".join([found[piece] for piece in pieces]) for word, pieces in unknown.items()})
        for word, packed in found.items():
            self._keep(word, packed)
        return found


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

"""Text to token ids: the `tokenizers` library, with a cache of words in front of it.

`processor` calls it from the event loop and from other threads. The tokenizer's settings (truncation to the model's
length, no padding) are set at load and never changed: `tokenizers` objects may be read by many threads, but fail with
"Already borrowed" while one of them changes a setting. So no method here changes anything, and one instance serves all
threads. Folders with the same `tokenizer.json`, such as fine-tunings of one model, share one `TextTokenizer` with its
vocabulary (11 MB for 30,000 words) and its cache of words.
The word cache is used whenever it is exact (`words`), so answers are the same with it. `TOKENIZERS_PARALLELISM` is a
setting of the process and is not touched here.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import cached_property
from pathlib import Path
from threading import Lock
from typing import Any, Final, NamedTuple, TypeVar
from weakref import WeakValueDictionary

from tokenizers import Tokenizer

from preprocessing import tokenizer_file
from preprocessing.config import Side, TaskConfig
from preprocessing.descriptions import NotUnderstood
from preprocessing.errors import InvalidBundle, InvalidOption, TokenizationFailed
from preprocessing.framing import Framing
from preprocessing.tokenizer_settings import refuse_contradictions
from preprocessing.types import Encoded, Texts, pack
from preprocessing.windows import Windower
from preprocessing.words.cache import DEFAULT_MAX_WORDS, WordCache
from preprocessing.words.rules import KNOWN_PATTERNS

_T = TypeVar("_T")


class Token(NamedTuple):
    """A token for people: its id, its text, and its position in the text in characters.

    Tokens that were added around the text have no position.
    """

    id: int
    text: str
    special: bool
    start: int | None
    stop: int | None


class TextTokenizer:
    """Encodes texts and pairs with special tokens, cut to `max_length`, without padding."""

    def __init__(
        self,
        tokenizer: Tokenizer,
        *,
        max_length: int,
        unknown_id: int | None,
        zero_types: bool,
        word_cache: bool | int = False,
        truncation_side: Side = "right",
        growth: int = 1,
        is_slow: bool = False,
    ) -> None:
        """`word_cache` is the most words to keep: True for the default number, False or 0 for none."""
        self._tokenizer = tokenizer
        self._unknown_id = unknown_id
        self._zero_types = zero_types
        self._max_words = DEFAULT_MAX_WORDS if word_cache is True else int(word_cache)
        self.max_length = max_length
        self.growth = growth
        """How many characters the normalizer may make of one."""
        self.is_slow = is_slow
        """Whether even a short text may take long: an expression may try many ways to match."""
        self._framing: Framing | None = None
        self.words: WordCache | None = None
        """The cached words; None if there is no cache."""
        self._truncation_side: Side = truncation_side
        with suppress(NotUnderstood):
            self._framing = Framing(
                tokenizer, max_length=max_length, truncation_side=truncation_side, unknown_id=unknown_id
            )
            self.words = self._make_cache(self._framing)

    @classmethod
    def from_folder(cls, folder: Path, config: TaskConfig, *, word_cache: bool | int = True) -> TextTokenizer:
        """Load `tokenizer.json`, with truncation and padding replaced by those of `config`. Raises InvalidBundle."""
        content = tokenizer_file.read(folder / "tokenizer.json")
        digest = hashlib.sha256(content).digest()
        key = (digest, config.max_length, config.truncation_side, config.splits_special_tokens, int(word_cache))
        with _loading:
            found = _loaded.get(key)
        if found is None:
            found = cls._load(content, config, word_cache=word_cache)
            with _loading:  # another thread may have loaded it meanwhile
                found = _loaded.setdefault(key, found)
        found.check_settings(config)
        return found

    @classmethod
    def _load(cls, content: bytes, config: TaskConfig, *, word_cache: bool | int) -> TextTokenizer:
        file = tokenizer_file.examine(content)
        try:
            tokenizer = _guarded(Tokenizer.from_buffer, content)
        except TokenizationFailed as error:
            reason = error.__cause__
            raise InvalidBundle(
                f"tokenizer.json cannot be loaded: {reason}", hint="save the tokenizer again"
            ) from reason
        specials = int(tokenizer.num_special_tokens_to_add(True))
        if config.max_length <= specials:
            raise InvalidOption(
                f"max_length is {config.max_length}, but special tokens alone take {specials}",
                hint=f"set max_length to at least {specials + 1}",
            )
        tokenizer.encode_special_tokens = config.splits_special_tokens
        tokenizer.no_padding()
        tokenizer.enable_truncation(config.max_length, strategy="longest_first", direction=config.truncation_side)
        # A template gives each piece a constant type, so one text shows whether single texts have other types than 0.
        probe = _guarded(tokenizer.encode, "a")
        # Byte-level models have no unknown token, whatever other files say.
        unknown = getattr(tokenizer.model, "unk_token", None)
        return cls(
            tokenizer,
            max_length=config.max_length,
            unknown_id=file.unknown_id if unknown is None else tokenizer.token_to_id(unknown),
            zero_types=not any(probe.type_ids),
            word_cache=word_cache,
            truncation_side=config.truncation_side,
            growth=file.growth,
            is_slow=not file.patterns <= KNOWN_PATTERNS,
        )

    def check_settings(self, config: TaskConfig) -> None:
        """Raise InvalidBundle if tokenizer_config.json contradicts this tokenizer."""
        refuse_contradictions(config.tokenizer_settings, config.model_type, self._tokenizer)

    @cached_property
    def vocab_size(self) -> int:
        """The largest token id plus one; a model with a smaller embedding table cannot use this tokenizer."""
        # To list a large vocabulary takes a third of a second under the interpreter's lock, and most have no gaps.
        count = int(self._tokenizer.get_vocab_size(with_added_tokens=True))
        if all(self._tokenizer.id_to_token(i) is not None for i in range(count)):
            return count
        return max(self._tokenizer.get_vocab(with_added_tokens=True).values(), default=-1) + 1

    def encode_batch(self, texts: Texts) -> list[Encoded]:
        """Return one `Encoded` per text or pair, in order."""
        if self.words is None:
            return self._encode(texts)
        rows = self.words.encode_batch(texts)
        if None not in rows:
            return rows  # type: ignore[return-value] # just looked
        unanswered = [i for i, row in enumerate(rows) if row is None]
        for i, row in zip(unanswered, self._encode([texts[i] for i in unanswered]), strict=True):  # type: ignore[arg-type]
            rows[i] = row
        return rows  # type: ignore[return-value] # all filled

    def outgrows(self, texts: Texts, most: int) -> bool:
        """Return whether texts (or pairs) have more than `most` characters once they are normalized.

        Normalizes them in pieces, so that it takes no memory for the rest once there are more. An expression that
        matches over several pieces may be missed; it makes less of its text than it is long.
        """
        parts = [part for text in texts for part in ((text,) if type(text) is str else text)]
        if sum(map(len, parts)) * self.growth <= most:
            return False
        normalize, left = self._tokenizer.normalizer.normalize_str, most
        size = min(max(_PIECE // self.growth, 1), _PIECE_CHARS)
        for part in parts:
            for start in range(0, len(part), size):
                left -= len(_guarded(normalize, part[start : start + size]))
                if left < 0:
                    return True
        return False

    @cached_property
    def windower(self) -> Windower:
        """The object that divides long texts into rows, with tokenizers of its own."""
        return Windower(
            self._tokenizer,
            max_length=self.max_length,
            truncation_side=self._truncation_side,
            unknown_id=self._unknown_id,
        )

    # --- what heads use ---

    @property
    def is_word_aware(self) -> bool:
        """Whether a token's text says that it continues a word (WordPiece's prefix)."""
        return bool(getattr(self._tokenizer.model, "continuing_subword_prefix", None))

    @property
    def adds_special_tokens(self) -> bool:
        """Whether even an empty text has tokens."""
        return int(self._tokenizer.num_special_tokens_to_add(False)) > 0

    def token_of(self, token_id: int) -> str:
        """Return a token as written in the vocabulary; empty if the id is unknown."""
        return str(self._tokenizer.id_to_token(token_id) or "")

    def id_of(self, token: str) -> int | None:
        """Return the id of exactly this token, or None."""
        found = self._tokenizer.token_to_id(token)
        return None if found is None else int(found)

    def first_ids(self, texts: Sequence[str]) -> list[int | None]:
        """Return each text's first token without special tokens; None if it has none."""
        encodings = _guarded(self._tokenizer.encode_batch_fast, list(texts), add_special_tokens=False)
        return [int(encoding.ids[0]) if encoding.ids else None for encoding in encodings]

    def prompt_size(self, prompt: str) -> int:
        """Return the number of tokens of a prompt at a text's beginning, including special tokens before it."""
        found = _guarded(self._tokenizer.encode_batch_fast, [prompt])[0]
        return len(found.ids) - (1 if found.special_tokens_mask[-1:] == [1] else 0)

    def join(self, tokens: Sequence[str]) -> str:
        """Return tokens as readable text."""
        decoder = self._tokenizer.decoder
        return " ".join(tokens) if decoder is None else str(decoder.decode(list(tokens)))

    def encode_bare(self, text: str) -> Encoded:
        """Encode a text without special tokens, for a prompt that contains its own."""
        return self._encoded(_guarded(self._tokenizer.encode_batch_fast, [text], add_special_tokens=False)[0])

    def tokens_of(self, text: str, *, add_special_tokens: bool, most: int) -> list[Token] | None:
        """Return all tokens of a text, even those beyond the model's length; None for more than `most` in the text."""
        bare = _guarded(self._tokenizer.encode_batch, [text], add_special_tokens=False)[0]
        # Counted first: to make the tokens takes as long as to encode the text, and holds the interpreter's lock.
        if len(bare) + sum(map(len, bare.overflowing)) > most:
            return None
        # Overflowing pieces come in the order in which they were cut: from the end if the beginning is cut.
        pieces = sorted((bare, *bare.overflowing), key=lambda piece: piece.offsets[:1])
        found = [
            Token(number, text[start:stop], False, start, stop)
            for piece in pieces
            for number, (start, stop) in zip(piece.ids, piece.offsets, strict=True)
        ]
        if not add_special_tokens:
            return found
        around = _guarded(self._tokenizer.encode_batch, ["a"])[0]
        special = [Token(*pair, True, None, None) for pair in zip(around.ids, around.tokens, strict=True)]
        mask = around.special_tokens_mask
        front = mask.index(0) if 0 in mask else len(mask)
        back = len(mask) - mask[::-1].index(0) if 0 in mask else len(mask)
        return [*special[:front], *found, *special[back:]]

    def decode(self, ids: Sequence[int], *, skip_special_tokens: bool = False) -> str:
        """Return ids as readable text."""
        return str(self._tokenizer.decode(list(ids), skip_special_tokens=skip_special_tokens))

    def decode_batch(self, rows: Sequence[Sequence[int]], *, skip_special_tokens: bool = False) -> list[str]:
        """Return each row of ids as readable text. Releases the interpreter lock."""
        return list(self._tokenizer.decode_batch(rows, skip_special_tokens=skip_special_tokens))

    # ---

    def _encode(self, texts: Texts) -> list[Encoded]:
        """Encode with the library, which releases the interpreter lock."""
        if texts and type(texts[0]) is tuple and self._framing is not None and self._framing.knows_pairs:
            return self._encode_pairs(texts, self._framing)
        # The batch form even for one text: `encode` holds the interpreter lock and takes as long.
        return [self._encoded(encoding) for encoding in _guarded(self._tokenizer.encode_batch_fast, list(texts))]

    def _encode_pairs(self, pairs: Sequence[Any], framing: Framing) -> list[Encoded]:
        """Encode each distinct text of the pairs once, and join them here; see `framing`."""
        texts = list(dict.fromkeys(text for pair in pairs for text in pair))
        encodings = _guarded(self._tokenizer.encode_batch_fast, texts, add_special_tokens=False)
        known = {text: (pack(found.ids), _full_size(found)) for text, found in zip(texts, encodings, strict=True)}
        rows = []
        for first, second in pairs:
            (first_ids, n), (second_ids, m) = known[first], known[second]
            rows.append(framing.pair_row(first_ids, second_ids, (n, m)))
        return rows

    def _encoded(self, encoding: Any) -> Encoded:
        ids: list[int] = encoding.ids
        type_ids: bytes | None = None
        if not self._zero_types or encoding.n_sequences > 1:
            type_ids = pack(encoding.type_ids)
        return Encoded(
            pack(ids),
            type_ids,
            0 if self._unknown_id is None else ids.count(self._unknown_id),
            len(ids) >= self.max_length and bool(encoding.overflowing),
        )

    def _make_cache(self, framing: Framing) -> WordCache | None:
        """Return a word cache, if one is wanted. Raises NotUnderstood if none is possible."""
        if self._max_words <= 0:
            return None
        cache = WordCache(self._tokenizer, framing, max_words=self._max_words)
        try:
            for texts in _probes(self.max_length):
                expected = [_values(self._encoded(row)) for row in _guarded(self._tokenizer.encode_batch, texts)]
                for _ in ("learning", "knowing"):
                    for row, values in zip(cache.encode_batch(texts), expected, strict=True):
                        if row is not None and _values(row) != values:
                            raise NotUnderstood("it disagrees with the tokenizer on a probe")
        except TokenizationFailed as error:
            raise NotUnderstood("the tokenizer fails on a probe") from error
        return cache


_PIECE: Final = 1_000_000
"""Most characters that a piece of a text becomes when it is normalized."""
_PIECE_CHARS: Final = 16_384
"""Longest piece: the library keeps the interpreter's lock while it normalizes one."""
_PROBED_WORDS: Final = 512
"""Words of the longest probe. Rows of 100,000 tokens would take seconds and gigabytes, and are cut by the same rule."""

_loading: Final = Lock()
_loaded: Final[WeakValueDictionary[tuple[bytes, int, Side, bool, int], TextTokenizer]] = WeakValueDictionary()
"""Loaded tokenizers in use, by the hash of `tokenizer.json` and the other settings of `TextTokenizer`."""


def _guarded(call: Callable[..., _T], argument: object, **options: object) -> _T:
    try:
        return call(argument, **options)
    except BaseException as error:
        # The library raises bare Exceptions. A panic in it is a BaseException whose class cannot be imported.
        if isinstance(error, Exception) or type(error).__name__ == "PanicException":
            raise TokenizationFailed(f"The tokenizer failed: {error}") from error
        raise


def _full_size(encoding: Any) -> int:
    """Return the size of an encoding in bytes before truncation."""
    return (len(encoding) + sum(map(len, encoding.overflowing))) * 8


def _probes(max_length: int) -> tuple[list[Any], list[Any]]:
    """Return texts for which a cache must agree with the tokenizer before it is used, including truncated ones."""
    words = min(max_length, _PROBED_WORDS)
    long, longer = "word " * words, "Isn't it? " * words
    return (
        ["a b", "", " ", "The quick brown fox, isn't it?", "e\u0301中 \u0301x\u00a0y  z\n1 (2)", long.strip(), longer],
        [("a", "b c"), ("", "a"), (long.strip(), "a b"), ("a b", longer.strip()), (long.strip(), longer.strip())],
    )


def _values(row: Encoded) -> tuple[object, ...]:
    return row.packed_ids, row.packed_type_ids, row.n_unknown, row.truncated

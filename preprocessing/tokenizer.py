"""Text to token ids: the `tokenizers` library and nothing around it.

Called by `processor`, from the event loop or from any thread. The tokenizer's settings are fixed when it is loaded
(truncation to the model's length, no padding) and never touched again: `tokenizers` objects may be read by many threads
at once, but fail with "Already borrowed" when one of them changes a setting. So no method here changes anything, and
one instance serves all threads; `clone()` is there for a caller that prefers a copy per thread.
`TOKENIZERS_PARALLELISM` belongs to the process and is set by whoever owns that.
"""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import numpy as np
from tokenizers import Tokenizer
from tokenizers.models import Unigram

from preprocessing.config import TaskConfig
from preprocessing.errors import InvalidBundle, InvalidOption, TokenizationFailed
from preprocessing.types import Encoded, IntArray, Texts


class TextTokenizer:
    """Encodes texts and pairs of texts, special tokens added, cut to `max_length`, never padded."""

    def __init__(self, tokenizer: Tokenizer, *, max_length: int, unknown_id: int | None, zero_types: bool) -> None:
        self._tokenizer = tokenizer
        self._unknown_id = unknown_id
        self._zero_types = zero_types
        self.max_length = max_length

    @classmethod
    def from_folder(cls, folder: Path, config: TaskConfig) -> TextTokenizer:
        """Load `tokenizer.json`; what it has baked in for truncation and padding is replaced by what `config` says."""
        path = folder / "tokenizer.json"
        if not path.is_file():
            raise InvalidBundle(
                "The model folder has no tokenizer.json",
                hint="AutoTokenizer.from_pretrained(...).save_pretrained(folder) writes it",
            )
        try:
            tokenizer = Tokenizer.from_file(str(path))
        except Exception as error:  # the library raises bare Exception for whatever it cannot parse
            raise InvalidBundle(f"tokenizer.json cannot be loaded: {error}", hint="save the tokenizer again") from error
        specials = int(tokenizer.num_special_tokens_to_add(True))
        if config.max_length <= specials:
            raise InvalidOption(
                f"max_length is {config.max_length}, but special tokens alone take {specials}",
                hint=f"set max_length to at least {specials + 1}",
            )
        tokenizer.no_padding()
        tokenizer.enable_truncation(config.max_length, strategy="longest_first", direction=config.truncation_side)
        probe = tokenizer.encode(
            "a"
        )  # a template gives every piece a constant type, so one text shows whether single texts have any type but zero
        return cls(
            tokenizer,
            max_length=config.max_length,
            unknown_id=_unknown_id(tokenizer, path),
            zero_types=not any(probe.type_ids),
        )

    @property
    def vocab_size(self) -> int:
        """The largest token id plus one: a model with a smaller embedding table cannot take this tokenizer's ids."""
        return max(self._tokenizer.get_vocab(with_added_tokens=True).values(), default=-1) + 1

    def clone(self) -> TextTokenizer:
        """An independent copy with the same settings."""
        return TextTokenizer(
            copy.deepcopy(self._tokenizer),
            max_length=self.max_length,
            unknown_id=self._unknown_id,
            zero_types=self._zero_types,
        )

    def encode_batch(self, texts: Texts, *, offsets: bool = False) -> list[Encoded]:
        """One `Encoded` per text or pair, in order. Releases the interpreter lock while it works; `offsets` makes it
        about a fifth slower.
        """
        # The batch form even for one text: `encode` holds the interpreter lock, and costs the same.
        encode = self._tokenizer.encode_batch if offsets else self._tokenizer.encode_batch_fast
        try:
            encodings = encode(texts if isinstance(texts, list) else list(texts))
        except BaseException as error:
            # A panic inside the Rust library arrives as a BaseException of a class that cannot be imported.
            if isinstance(error, Exception) or type(error).__name__ == "PanicException":
                raise TokenizationFailed(f"The tokenizer failed: {error}") from error
            raise
        return [self._encoded(encoding, offsets=offsets) for encoding in encodings]

    def _encoded(self, encoding: Any, *, offsets: bool) -> Encoded:
        ids: list[int] = encoding.ids
        type_ids: IntArray | None = None
        if not self._zero_types or encoding.n_sequences > 1:
            type_ids = np.array(encoding.type_ids, dtype=np.int64)
        return Encoded(
            np.array(ids, dtype=np.int64),
            type_ids,
            0 if self._unknown_id is None else ids.count(self._unknown_id),
            len(ids) >= self.max_length and bool(encoding.overflowing),
            np.array(encoding.offsets, dtype=np.int64).reshape(-1, 2) if offsets else None,
        )


def _unknown_id(tokenizer: Tokenizer, path: Path) -> int | None:
    """The unknown token of the model inside tokenizer.json; byte-level models have none, whatever other files name."""
    token = getattr(tokenizer.model, "unk_token", None)
    if isinstance(token, str):
        found = tokenizer.token_to_id(token)
        return None if found is None else int(found)
    if not isinstance(tokenizer.model, Unigram):
        return None
    unknown = json.loads(path.read_text(encoding="utf-8"))["model"].get("unk_id")  # the binding does not expose it
    return unknown if isinstance(unknown, int) else None

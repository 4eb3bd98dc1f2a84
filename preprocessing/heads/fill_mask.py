"""Fill-mask: a text with mask tokens to the tokens that fit best, as `transformers`' fill-mask pipeline answers.

Request: `{"text": "Paris is the [MASK] of France.", "parameters": {"top_k": 5, "targets": ["capital", …]}}`, parameters
optional; the mask token is the model's own (the endpoint's description names it).

Answer for one text: `{"predictions": [{"score": s, "token": id, "token_str": "…", "sequence": "…"}, …], "tokens": n}`,
with several masks one such list for each; for a list: `{"results": [{"predictions": […]}, …], "tokens": [n, …]}`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any, Final, cast

import numpy as np
from pydantic import Field

from preprocessing.activations import softmax
from preprocessing.config import FILL_MASK, TaskConfig
from preprocessing.errors import InvalidBundle, InvalidInput
from preprocessing.heads.base import Head, own_tokens, parse_texts, refuse_non_finite, text_field
from preprocessing.parameters import AS_LIST, Count, Parameters
from preprocessing.text import clean_up
from preprocessing.types import Encoded, ParsedRequest, Prepared, Tensors, pack

if TYPE_CHECKING:
    from preprocessing.tokenizer import TextTokenizer

_TOP_K: Final = 5
_PREDICTION_BYTES: Final = 90
_TOKEN_BYTES: Final = 7
_AT_ONCE: Final = 256
"""Predictions that are decoded in one call."""
_Target = Annotated[str, Field(min_length=1, max_length=100)]


class _Parameters(Parameters):
    top_k: Count | None = None
    targets: Annotated[list[_Target], Field(min_length=1, max_length=1000), AS_LIST] | None = None


class FillMask(Head):
    """The head of `*ForMaskedLM` models."""

    task = FILL_MASK
    parameters = _Parameters

    def __init__(self, config: TaskConfig, vocabulary: TextTokenizer) -> None:
        if config.mask_id is None:
            raise InvalidBundle(
                "The tokenizer names no mask token",
                hint="tokenizer_config.json needs mask_token; save_pretrained() writes it",
            )
        super().__init__(config)
        self._vocabulary = vocabulary
        self._mask_id = config.mask_id
        self._packed_mask = pack([config.mask_id])
        self._mask = vocabulary.token_of(config.mask_id)
        self.example = {"text": f"Paris is the {self._mask} of France."}

    def parse(self, body: object) -> ParsedRequest:
        """Return texts, each with the mask token."""
        texts, is_batch, parameters = parse_texts(body, self._config, pairs=False)
        request = ParsedRequest(texts, is_batch, self._options(_Parameters.of(parameters)))
        for i, text in enumerate(cast("Sequence[str]", texts)):
            if self._mask not in text:
                field = text_field(request, i)
                raise InvalidInput(f"{field} has no {self._mask}", field=field, hint="put it where a word is missing")
        return request

    def answer_bytes(self, prepared: Prepared, output_bytes: int) -> int:
        """Estimate: each prediction repeats its text, so masks × predictions × tokens."""
        del output_bytes
        targets = prepared.request.options.get("targets")
        known = self._config.vocab_size or prepared.request.options["top_k"]
        wanted = min(prepared.request.options["top_k"], known if targets is None else len(targets))
        answer_bytes = 0
        for row in prepared.rows:
            predictions = row.packed_ids.count(self._packed_mask) * wanted
            answer_bytes += predictions * (_PREDICTION_BYTES + row.n_tokens * _TOKEN_BYTES)
        return answer_bytes

    def decode(self, outputs: Tensors, prepared: Prepared) -> list[Mapping[str, Any]]:
        """Return the best tokens for each mask, with probabilities over the whole vocabulary."""
        rows, options = prepared.rows, prepared.request.options
        name, logits = self.take_tokens(outputs, rows, "vocabulary")
        results: list[Mapping[str, Any]] = []
        for i, row in enumerate(rows):
            masks = np.flatnonzero(row.ids == self._mask_id)
            if not len(masks):
                field = text_field(prepared.request, i)
                raise InvalidInput(
                    f"The {self._mask} of {field} lies beyond what the model reads ({self._config.max_length} tokens)",
                    field=field,
                    hint="shorten the text before it",
                )
            own = own_tokens(logits, i, row.n_tokens, self._config.padding_side)[masks]
            refuse_non_finite(name, own)
            lists = self._best(row, masks.tolist(), softmax(own), options)
            results.append({"predictions": lists[0] if len(lists) == 1 else lists})
        return results

    def _options(self, asked: _Parameters) -> dict[str, Any]:
        options: dict[str, Any] = {"top_k": asked.top_k or self._config.top_k or _TOP_K}
        if asked.targets is not None:
            ids = [self._vocabulary.id_of(target) for target in asked.targets]
            # A target that is not a token is replaced by its first token.
            others = [target for target, id_ in zip(asked.targets, ids, strict=True) if id_ is None]
            ids += self._vocabulary.first_ids(others) if others else []
            options["targets"] = sorted({id_ for id_ in ids if id_ is not None})
            if not options["targets"]:
                raise InvalidInput("No target is in the model's vocabulary", field="parameters.targets")
        return options

    def _best(
        self, row: Encoded, masks: Sequence[int], scores: Any, options: Mapping[str, Any]
    ) -> list[list[dict[str, Any]]]:
        targets = options.get("targets")
        choices = np.arange(scores.shape[1]) if targets is None else np.array(targets)
        lists = []
        for mask, own in zip(masks, scores, strict=True):
            values = own[choices]
            size = min(options["top_k"], len(values))
            best = np.argpartition(-values, size - 1)[:size]
            best = best[np.argsort(-values[best], kind="stable")]
            predictions: list[dict[str, Any]] = []
            for start in range(0, size, _AT_ONCE):
                part = best[start : start + _AT_ONCE]
                tokens = choices[part].tolist()
                sequences = self._decoded(self._filled(row, mask, tokens), skip_special_tokens=len(masks) == 1)
                names = self._decoded([[token] for token in tokens])
                predictions += [
                    {"score": score, "token": token, "token_str": name, "sequence": sequence}
                    for score, token, name, sequence in zip(
                        values[part].tolist(), tokens, names, sequences, strict=True
                    )
                ]
            lists.append(predictions)
        return lists

    def _filled(self, row: Encoded, mask: int, tokens: Sequence[int]) -> list[list[int]]:
        """Return the row's ids without padding, once for each candidate token at `mask`."""
        pad_id, ids = self._config.pad_id, row.ids.tolist()
        before, after = ([id_ for id_ in part if id_ != pad_id] for part in (ids[:mask], ids[mask + 1 :]))
        return [[*before, *([] if token == pad_id else [token]), *after] for token in tokens]

    def _decoded(self, rows: Sequence[Sequence[int]], *, skip_special_tokens: bool = False) -> list[str]:
        texts = self._vocabulary.decode_batch(rows, skip_special_tokens=skip_special_tokens)
        return [clean_up(text) for text in texts] if self._config.cleans_up else texts

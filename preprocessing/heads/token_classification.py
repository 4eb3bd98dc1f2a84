"""Token classification: a text to its entities with their places, as `transformers`' token-classification pipeline
finds them.

Request: `{"text": …, "parameters": {"aggregation_strategy": "simple", "ignore_labels": ["O"], "stride": 32}}`,
parameters optional.

Answer for one text: `{"entities": [{"entity_group": "PER", "score": s, "word": "…", "start": 11, "end": 16}, …],
"tokens": n}`; with the strategy `none` an entity is a token: `entity`, `score`, `index`, `word`, `start`, `end`. For a
list: `{"results": [{"entities": […]}, …], "tokens": [n, …]}`. `start` and `end` are characters of the text.

A text that is longer than the model's input is read in overlapping windows. The pipeline finds entities in each window
and keeps the longer of two that overlap. Here every token takes its scores from the window in which it has most context
on both sides, and entities are found once, over all tokens; words and names at the edge of a window are not cut.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, cast

import numpy as np
from numpy.typing import NDArray

from preprocessing.activations import softmax
from preprocessing.config import AGGREGATIONS, TOKENS, Aggregation, TaskConfig
from preprocessing.errors import InvalidInput
from preprocessing.heads.base import (
    Vocabulary,
    WindowedHead,
    choice_of,
    count_of,
    own_tokens,
    parse_texts,
    refuse_non_finite,
    refuse_unknown_parameters,
    strings_of,
    windows_by_text,
)
from preprocessing.types import FloatArray, ParsedRequest, Prepared, Tensors, Window, Windows

_PARAMETERS: Final = ("aggregation_strategy", "ignore_labels", "stride")
_ENTITY_BYTES: Final = 90


@dataclass(slots=True)
class _Token:
    """A token, or (after aggregation) a word: its label and position."""

    label: str
    score: float
    word: str
    start: int
    end: int
    index: int = -1


class TokenClassification(WindowedHead):
    """The head of `*ForTokenClassification` models."""

    task = TOKENS

    def __init__(self, config: TaskConfig, vocabulary: Vocabulary) -> None:
        self._config = config
        self._vocabulary = vocabulary
        self._stride = config.max_length // 4 if config.stride is None else config.stride

    def parse(self, body: object) -> ParsedRequest:
        """Return single texts, divided into windows."""
        config = self._config
        texts, is_batch, parameters = parse_texts(body, config, pairs=False)
        refuse_unknown_parameters(parameters, _PARAMETERS)
        stride = count_of(parameters, "stride", least=0)
        if stride is not None and stride >= config.max_length:
            raise InvalidInput(
                f"stride must be less than the {config.max_length} tokens of a window", field="parameters.stride"
            )
        ignored = parameters.get("ignore_labels")
        options = {
            "aggregation": choice_of(parameters, "aggregation_strategy", AGGREGATIONS) or config.aggregation,
            "ignored": () if ignored == [] else strings_of(parameters, "ignore_labels") or config.ignored_labels,
        }
        windows = Windows(self._stride if stride is None else stride, keeps_all=config.long_texts == "window")
        return ParsedRequest(texts, is_batch, options, windows)

    def answer_bytes(self, prepared: Prepared, output_bytes: int) -> int:
        """Estimate: every token may be an entity."""
        del output_bytes
        return prepared.n_tokens * _ENTITY_BYTES

    def decode(self, outputs: Tensors, prepared: Prepared) -> list[Mapping[str, Any]]:
        """Return each text's entities, in order."""
        rows = prepared.rows
        form = "labels of config.json's id2label"
        name, logits = self.take_tokens(outputs, rows, form, len(self._config.labels))
        options = prepared.request.options
        results: list[Mapping[str, Any]] = []
        for text, positions in zip(prepared.request.texts, windows_by_text(prepared), strict=True):
            windows = [cast("Window", rows[position]) for position in positions]
            own = [
                own_tokens(logits, position, window.n_tokens, self._config.padding_side)
                for position, window in zip(positions, windows, strict=True)
            ]
            for values in own:
                refuse_non_finite(name, values)
            ids, offsets, scores, first = _merged(windows, own)
            entities = self._entities(cast("str", text), ids, offsets, softmax(scores), first, options["aggregation"])
            kept = [entity for entity in entities if _label(entity) not in options["ignored"]]
            results.append({"entities": kept})
        return results

    def describe(self) -> dict[str, object]:
        """Return the model's labels, the aggregation of tokens, and an example."""
        config = self._config
        return {
            "labels": list(dict.fromkeys(_split(label)[1] for label in config.labels)),
            "aggregation_strategy": config.aggregation,
            "ignore_labels": list(config.ignored_labels),
            "long_texts": config.long_texts,
            "stride": self._stride,
            "parameters": list(_PARAMETERS),
            "text_pairs": False,
            "example": {"text": "My name is Sarah and I live in London."},
        }

    def _entities(
        self,
        text: str,
        ids: Sequence[int],
        offsets: Sequence[tuple[int, int]],
        scores: FloatArray,
        first: int,
        strategy: Aggregation,
    ) -> list[dict[str, Any]]:
        labels, unknown = self._config.labels, self._config.unknown_id
        if not len(ids):
            return []
        words = [self._vocabulary.token_of(id_) for id_ in ids]
        places = [text[start:end] for start, end in offsets]
        shown = [place if id_ == unknown else word for id_, word, place in zip(ids, words, places, strict=True)]
        best, values = scores.argmax(axis=1).tolist(), scores.max(axis=1).tolist()
        if strategy in ("none", "simple"):
            tokens = [
                _Token(labels[best[i]], values[i], shown[i], *offsets[i], index=first + i) for i in range(len(ids))
            ]
            if strategy == "none":
                return [
                    {"entity": t.label, "score": t.score, "index": t.index, "word": t.word, "start": t.start,
                     "end": t.end} for t in tokens
                ]  # fmt: skip
            return self._grouped(tokens)
        groups: list[list[int]] = []
        for i, (start, _) in enumerate(offsets):
            if self._vocabulary.is_word_aware:
                continues = len(words[i]) != len(places[i])
            else:
                continues = start > 0 and " " not in text[start - 1 : start + 1]
            if groups and continues and ids[i] != unknown:
                groups[-1].append(i)
            else:
                groups.append([i])
        found = []
        for group in groups:
            if strategy == "average" and len(group) > 1:
                own = scores[group].mean(axis=0)
                label, score = int(own.argmax()), float(own.max())
            else:
                chosen = max(group, key=values.__getitem__) if strategy == "max" else group[0]
                label, score = best[chosen], values[chosen]
            word = self._vocabulary.join([shown[i] for i in group])
            found.append(_Token(labels[label], score, word, offsets[group[0]][0], offsets[group[-1]][1]))
        return self._grouped(found)

    def _grouped(self, tokens: Sequence[_Token]) -> list[dict[str, Any]]:
        """Merge neighbours with the same entity; a `B-` label begins a new one."""
        groups: list[list[_Token]] = []
        for token in tokens:
            begins, tag = _split(token.label)
            if groups and not begins and tag == _split(groups[-1][-1].label)[1]:
                groups[-1].append(token)
            else:
                groups.append([token])
        return [
            {
                "entity_group": group[0].label.split("-", 1)[-1],
                "score": sum(token.score for token in group) / len(group),
                "word": self._vocabulary.join([token.word for token in group]),
                "start": group[0].start,
                "end": group[-1].end,
            }
            for group in groups
        ]


def _split(label: str) -> tuple[bool, str]:
    """Return whether a label begins an entity, and the entity's name."""
    if label.startswith("B-"):
        return True, label[2:]
    return False, label.removeprefix("I-")


def _label(entity: Mapping[str, Any]) -> str:
    return str(entity.get("entity", entity.get("entity_group")))


def _merged(
    windows: Sequence[Window], logits: Sequence[NDArray[Any]]
) -> tuple[list[int], list[tuple[int, int]], NDArray[Any], int]:
    """Merge a text's windows: ids, offsets, logits [tokens, labels], and the index of the first token in its row.

    Where windows overlap, a token is taken from the window in which it is farthest from an edge.
    """
    own = [np.flatnonzero(~window.special) for window in windows]
    lead = int(own[0][0]) if len(own[0]) else 0
    if len(windows) == 1:
        (window,), (places,) = windows, own
        offsets = window.offsets[places]
        return window.ids[places].tolist(), [tuple(pair) for pair in offsets.tolist()], logits[0][places], lead
    size = max(window.first + len(places) for window, places in zip(windows, own, strict=True))
    context = np.full(size, -1)
    ids = np.zeros(size, np.int64)
    spans = np.zeros((size, 2), np.int64)
    merged = np.zeros((size, logits[0].shape[1]), np.float32)
    for window, places, values in zip(windows, own, logits, strict=True):
        count = len(places)
        mine = np.minimum(np.arange(count), np.arange(count)[::-1])
        # The ends of the text itself are not edges.
        if window.first == 0:
            mine = np.arange(count)[::-1]
        if window.first + count == size:
            mine = np.arange(count) if window.first else np.full(count, size)
        target = np.arange(window.first, window.first + count)
        better = mine > context[target]
        chosen, source = target[better], places[better]
        context[chosen] = mine[better]
        ids[chosen], spans[chosen] = window.ids[source], window.offsets[source]
        merged[chosen] = values[source]
    return ids.tolist(), [(begin, end) for begin, end in spans.tolist()], merged, lead

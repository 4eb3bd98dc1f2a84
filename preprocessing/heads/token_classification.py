"""Token classification: a text to its entities with their places, as `transformers`' token-classification pipeline
finds them.

Request: `{"text": …, "parameters": {"aggregation_strategy": "simple", "ignore_labels": ["O"], "stride": 32}}`,
parameters optional.

Answer for one text: `{"entities": [{"entity_group": "PER", "score": s, "word": "…", "start": 11, "end": 16}, …],
"tokens": n}`; with the strategy `none` an entity is a token: `entity`, `score`, `index`, `word`, `start`, `end`. For a
list: `{"results": [{"entities": […]}, …], "tokens": [n, …]}`. `start` and `end` are characters of the text.

A text that is longer than the model's input is read in overlapping windows. As in the pipeline, entities are found in
each window, and the longer of two that overlap is kept.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, cast

import numpy as np

from preprocessing.activations import softmax
from preprocessing.config import TOKENS, TaskConfig
from preprocessing.heads.base import WindowedHead, own_tokens, parse_texts, refuse_non_finite, windows_by_text
from preprocessing.parameters import Aggregation, CountOrZero, Parameters, refuse_above
from preprocessing.types import FloatArray, ParsedRequest, Prepared, Tensors, Window, Windows

if TYPE_CHECKING:
    from preprocessing.tokenizer import TextTokenizer

_ENTITY_BYTES: Final = 90


class _Parameters(Parameters):
    aggregation_strategy: Aggregation | None = None
    ignore_labels: list[str] | None = None
    stride: CountOrZero | None = None


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
    parameters = _Parameters
    example: Mapping[str, object] = {"text": "My name is Sarah and I live in London."}

    def __init__(self, config: TaskConfig, vocabulary: TextTokenizer) -> None:
        super().__init__(config)
        self.labels = list(dict.fromkeys(_split(label)[1] for label in config.labels))
        self._vocabulary = vocabulary
        self._stride = config.max_length // 4 if config.stride is None else config.stride

    def parse(self, body: object) -> ParsedRequest:
        """Return single texts, divided into windows."""
        config = self._config
        texts, is_batch, parameters = parse_texts(body, config, pairs=False)
        asked = _Parameters.of(parameters)
        refuse_above(config.max_length - 1, stride=asked.stride)
        stride = self._stride if asked.stride is None else asked.stride
        options = {
            "aggregation": asked.aggregation_strategy or config.aggregation,
            "ignored": config.ignored_labels if asked.ignore_labels is None else asked.ignore_labels,
        }
        windows = Windows(stride, keeps_all=config.long_texts == "window")
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
            found: list[dict[str, Any]] = []
            for position in positions:
                window = cast("Window", rows[position])
                values = own_tokens(logits, position, window.n_tokens, self._config.padding_side)
                refuse_non_finite(name, values)
                entities = self._entities(cast("str", text), window, softmax(values), options["aggregation"])
                found += [entity for entity in entities if _label(entity) not in options["ignored"]]
            results.append({"entities": _apart(found) if len(positions) > 1 else found})
        return results

    def _entities(
        self, text: str, window: Window, all_scores: FloatArray, strategy: Aggregation
    ) -> list[dict[str, Any]]:
        labels, unknown = self._config.labels, self._config.unknown_id
        own = np.flatnonzero(~window.special)
        if not len(own):
            return []
        ids, scores, first = window.ids[own].tolist(), all_scores[own], window.first + int(own[0])
        offsets = [(begin, end) for begin, end in window.offsets[own].tolist()]
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


def _apart(entities: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return entities in order of their places; of those that overlap the longest, then the one with the best score."""
    found: list[dict[str, Any]] = []
    for entity in sorted(entities, key=lambda one: _span(one)[0]):
        last = found[-1] if found else None
        if last is None or _span(entity)[0] >= _span(last)[1]:
            found.append(entity)
        elif _weight(entity) > _weight(last):
            found[-1] = entity
    return found


def _span(entity: Mapping[str, Any]) -> tuple[int, int]:
    """Return the place in characters; of a token its place among the tokens, as several may share a character."""
    return (entity["index"], entity["index"] + 1) if "index" in entity else (entity["start"], entity["end"])


def _weight(entity: Mapping[str, Any]) -> tuple[int, float]:
    return entity["end"] - entity["start"], entity["score"]

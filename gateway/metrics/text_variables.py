"""The built-in variables of text tasks: tokens, scripts, languages, words, labels, scores, entropy and embeddings.

``watch`` passes on requests that were answered. An unreadable result costs only its own count. For use by one event
loop.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from gateway.metrics import catalog, embeddings, texts, variables, words
from gateway.metrics.declared import MAX_BUCKETS, MAX_LABEL_CHARS
from gateway.metrics.drift import Mean, Words
from gateway.metrics.served import Served
from gateway.metrics.variable_counts import MAX_PENDING, Enum, LateScalar, Scalar, VariableSeries
from gateway.trace import TextRow, Trace

_TOGETHER: Final = 16
"""Requests or rows that are drawn at a high rate before they are counted: one by one takes three times as long."""
_TEXT_BOUNDS: Final[Mapping[str, tuple[float, ...]]] = {
    variables.TOKENS: catalog.TEXT_TOKEN_BUCKETS,
    variables.UNKNOWN: catalog.RARE_RATIO_BUCKETS,
}
_ANSWER_BOUNDS: Final[Mapping[str, tuple[float, ...]]] = {
    variables.SCORE: catalog.RATIO_BUCKETS,
    variables.ENTROPY: catalog.RATIO_BUCKETS,
}


class TextVariables:
    """The built-in variables of a text task, for each answered request, or for a random share under high load."""

    __slots__ = (
        "_cosines",
        "_drawn",
        "_entropy",
        "_has_labels",
        "_label",
        "_log_labels",
        "_looks",
        "_make_looks",
        "_n_labels",
        "_reference",
        "_runs",
        "_score",
        "_scores",
        "_tokens",
        "_truncated",
        "_unknown",
        "_unusual",
        "_vectors",
        "_waiting",
        "_waiting_rows",
        "forget_mean",
        "forget_words",
        "words",
    )  # fmt: skip

    def __init__(
        self, served: Served, numbers: VariableSeries, taken: set[str], chance: Callable[[], float],
        watches_words: bool, clock: Callable[[], float],
    ) -> None:  # fmt: skip
        reference = served.reference

        def scalar(name: str, bounds: Mapping[str, tuple[float, ...]]) -> Scalar | None:
            return None if name in taken else Scalar(name, numbers, reference.get(name), bounds[name])

        def enum(name: str, values: Sequence[str], expected: Collection[str] = ()) -> Enum | None:
            return None if name in taken else Enum(name, numbers, reference.get(name), values, expected)

        self._scores: list[float] = []
        """Scores of all labels, result by result, whose entropy is not computed yet."""
        numbers.pending.append(self.flush)
        labels = [label[:MAX_LABEL_CHARS] for label in served.labels[:MAX_BUCKETS]]
        self._tokens, self._unknown = scalar(variables.TOKENS, _TEXT_BOUNDS), scalar(variables.UNKNOWN, _TEXT_BOUNDS)
        self._truncated = enum(variables.TRUNCATED, texts.BOOLEANS)
        self._has_labels = bool(labels)
        self._n_labels = len(served.labels)
        self._log_labels = math.log(self._n_labels) if self._n_labels > 1 else 0.0
        self._label = enum(variables.LABEL, labels) if labels else None
        self._score = scalar(variables.SCORE, _ANSWER_BOUNDS) if labels else None
        self._entropy = scalar(variables.ENTROPY, _ANSWER_BOUNDS) if self._log_labels else None
        looked = {
            name: enum(name, (), expected)
            for name, expected in texts.VALUES.items()
            if name != variables.RISEN or watches_words
        }

        def late(name: str, bounds: tuple[float, ...]) -> LateScalar:
            return LateScalar(lambda: scalar(name, {name: bounds}), begins=name in reference)

        self._unusual = late(variables.UNUSUAL, catalog.WORD_RATIO_BUCKETS)
        risen = looked.get(variables.RISEN)

        def begin() -> None:
            self._unusual.begin()
            if risen is not None:
                risen.begin()

        self.forget_words = begin
        """Resets the variables of words: called when the usual words change."""
        cosine = late(variables.COSINE, catalog.COSINE_BUCKETS)
        self._cosines = embeddings.Cosines(served.mean, cosine.take_all)
        self.forget_mean = cosine.begin
        """Resets the variable of embeddings: called when the mean changes."""
        self._vectors = texts.Sample(texts.MAX_A_SECOND, chance, clock)
        self.words: words.WordWatch | None = None
        """Created with the first text: its tables would waste memory for hundreds of other versions."""
        self._reference = served.words if watches_words else None

        def looks() -> texts.TextCounter:
            self.words = words.WordWatch(served.words, begin) if watches_words else None
            return texts.TextCounter(
                {name: found.take_counts for name, found in looked.items() if found is not None},
                texts.Sample(texts.MAX_A_SECOND, chance, clock),
                self.words, self._unusual.take_all,
            )  # fmt: skip

        self._make_looks = looks
        self._looks: texts.TextCounter | None = None
        self._drawn = texts.Sample(texts.MAX_COUNTED, chance, clock)
        self._runs = texts.Runs(texts.MAX_COUNTED, clock)
        self._waiting: list[Trace] = []
        """Drawn requests that are not counted yet."""
        self._waiting_rows = 0

    def usual_words(self) -> Words | None:
        """Return the frequent words of the texts; before the first text, those of the reference."""
        return self._reference if self.words is None else self.words.usual()

    def mean(self) -> Mean | None:
        """Return the mean of the embeddings that they are compared with."""
        return self._cosines.mean

    def look(self, traces: Sequence[Trace]) -> None:
        """Count the texts and results of requests. Answers from the response cache come without texts."""
        number = 0
        for trace in traces:
            number += trace.rows
        drawn = self._drawn.of(traces, number)
        if self._runs.has(number) and (came := _texts_of(traces)):
            if self._looks is None:
                self._looks = self._make_looks()
            self._looks.follow(came, is_first=self._runs.is_first)
        if not drawn:
            return
        self._waiting += drawn
        self._waiting_rows += sum([trace.rows for trace in drawn])
        # At a high rate only one or two of those answered together are drawn: they wait for others, some milliseconds.
        if self._drawn.share == 1 or self._waiting_rows >= _TOGETHER or len(self._waiting) >= _TOGETHER:
            self._count_waiting()

    def _count_waiting(self) -> None:
        waiting, self._waiting, self._waiting_rows = self._waiting, [], 0
        if waiting:
            self._count(waiting)

    def _count(self, traces: Sequence[Trace]) -> None:
        rows = [row for trace in traces if trace.encoded for row in trace.encoded]
        if rows:
            self._see_texts(rows)
        if self._looks is not None:
            self._looks.see(_texts_of(traces))
        if not self._has_labels:
            self._see_vectors(traces)
            return
        results: list[Mapping[str, Any]] = []
        for trace in traces:
            answer = trace.answer
            if trace.prepared is not None and trace.prepared.unaltered is not None:
                results.extend(trace.prepared.unaltered)
            elif type(answer) is dict:
                several = answer.get("results")
                if several is None:
                    results.append(answer)
                else:
                    results.extend(several)
        if not self._see(self._see_results, results):
            for result in results:  # a result has an unexpected form: count the others one by one
                if type(result) is dict and "entities" in result:
                    self._see(self._see_entities, result["entities"])
                else:
                    self._see(self._see_results, [result])

    def flush(self) -> None:
        """Count collected requests, texts, vectors and entropies."""
        self._count_waiting()
        if self._looks is not None:
            self._looks.flush()
        self._count_entropies()

    def _count_entropies(self) -> None:
        scores, self._scores = self._scores, []
        if not scores or self._entropy is None:
            return
        try:
            found = self._entropies(scores)
        except (TypeError, ValueError):  # a result has scores that are not numbers: compute the others one by one
            found = []
            for start in range(0, len(scores), self._n_labels):
                with contextlib.suppress(TypeError, ValueError):
                    found += self._entropies(scores[start : start + self._n_labels])
        self._entropy.take_all(found)
        for _ in range(len(scores) // self._n_labels - len(found)):
            self._entropy.ignore("missing")

    def _entropies(self, scores: list[float]) -> list[float]:
        rows = np.array(scores, dtype=np.float64).reshape(-1, self._n_labels)
        found: list[float] = (_entropies(rows) / self._log_labels).tolist()
        return found

    def _see(self, count: Callable[[Any], None], what: Any) -> bool:
        try:
            count(what)
        except Exception:  # noqa: BLE001 - one unreadable result must not keep the others from being counted
            return False
        return True

    def _see_vectors(self, traces: Sequence[Trace]) -> None:
        vectors = [
            vector
            for trace in traces
            # A truncated vector points in another direction than the whole one.
            if trace.prepared is None or not trace.prepared.request.options.get("truncate_dim")
            for vector in embeddings.vectors_of(trace.answer)
        ]
        if vectors:
            self._see(self._cosines.see, self._vectors.of(vectors))

    def _see_texts(self, rows: Sequence[TextRow]) -> None:
        if self._tokens is not None:
            self._tokens.take_all([row.n_tokens for row in rows])
        if self._unknown is not None:
            self._unknown.take_all([row.n_unknown / row.n_tokens if row.n_tokens else 0.0 for row in rows])
        if self._truncated is not None:
            self._truncated.take_all([texts.BOOLEANS[row.truncated] for row in rows])

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
        top = [float(result["score"]) for result in results]
        scores = [result["scores"] for result in results] if self._entropy is not None else []
        whole = [value for one in scores if len(one) == self._n_labels for value in one.values()]
        if self._label is not None:
            self._label.take_all(labels)
        if self._score is not None:
            self._score.take_all(top)
        if self._entropy is not None:
            for _ in range(len(scores) - len(whole) // self._n_labels):
                self._entropy.ignore("missing")
            self._scores += whole
            if len(self._scores) >= MAX_PENDING * self._n_labels:
                self._count_entropies()


def _texts_of(traces: Sequence[Trace]) -> list[texts.Text]:
    # A request of token ids has empty texts.
    return [text for trace in traces if trace.prepared is not None for text in trace.prepared.request.texts if text]


def _entropies(rows: NDArray[np.float64]) -> NDArray[np.float64]:
    """Entropies in nats of the rows (n, labels) that are distributions over all labels; the others are left out."""
    rows = rows[(rows >= 0).all(axis=1) & (np.abs(rows.sum(axis=1) - 1) < 1e-3)]
    logs = np.log(rows, where=rows > 0, out=np.zeros_like(rows))
    entropies: NDArray[np.float64] = -(rows * logs).sum(axis=1)
    return entropies

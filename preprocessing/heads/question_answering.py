"""Question answering: finds the answer to a question in a context, like the question-answering pipeline of
`transformers` 4 (the last version that has it).

Request: `{"question": …, "context": …, "parameters": {"top_k": 1, "doc_stride": 128, "max_answer_len": 15,
"max_seq_len": 384, "handle_impossible_answer": false, "align_to_words": true}}`, parameters optional. Both may be
lists of one length, or one of them a list that the other goes with.

Answer: `{"answer": "…", "score": s, "start": 11, "end": 16, "tokens": n}`, with `"answers": [{…}, …]` from best to
worst if `top_k` is more than 1; for lists `{"results": [{"answer": …}, …], "tokens": [n, …]}`. `start` and `end` are
characters of the context; no answer (`handle_impossible_answer`) is an empty one.

A long context is read in windows that overlap by `doc_stride` tokens.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, cast

import numpy as np
from numpy.typing import NDArray

from preprocessing.activations import softmax
from preprocessing.config import QUESTION_ANSWERING, TaskConfig
from preprocessing.errors import InvalidBundle, InvalidInput, InvalidOutput
from preprocessing.heads.base import (
    WindowedHead,
    own_tokens,
    read_body,
    read_text,
    refuse_many,
    refuse_non_finite,
    windows_by_text,
)
from preprocessing.parameters import Count, CountOrZero, Parameters, refuse_above
from preprocessing.types import ParsedRequest, Prepared, Tensors, Window, Windows

_OUTPUTS: Final = ("start_logits", "end_logits")
_EXAMPLE: Final = 'send {"question": "…", "context": "…"}'
_MAX_SEQ_LEN: Final = 384
_STRIDE: Final = 128
_MAX_ANSWER_LEN: Final = 15
_RULED_OUT: Final = -10000.0
_ANSWER_BYTES: Final = 160
_TOKEN_BYTES: Final = 7


class _Parameters(Parameters):
    top_k: Count | None = None
    doc_stride: CountOrZero | None = None
    max_answer_len: Count = _MAX_ANSWER_LEN
    max_seq_len: Count | None = None
    handle_impossible_answer: bool = False
    align_to_words: bool = True


class QuestionAnswering(WindowedHead):
    """The head of `*ForQuestionAnswering` models."""

    task = QUESTION_ANSWERING
    text_fields = ("question", "context")
    parameters = _Parameters
    example: Mapping[str, object] = {
        "question": "Where do I live?", "context": "My name is Sarah and I live in London.",
    }  # fmt: skip

    def __init__(self, config: TaskConfig) -> None:
        super().__init__(config)
        # As in the pipeline: models padded on the left read the context first.
        self._context = 1 if config.padding_side == "right" else 0

    def parse(self, body: object) -> ParsedRequest:
        """Return pairs of question and context; the context is divided into windows."""
        config = self._config
        found, parameters = read_body(body, self.text_fields, self.text_fields, _EXAMPLE)
        asked = _Parameters.of(parameters)
        question, context = found["question"], found["context"]
        is_batch = isinstance(question, list) or isinstance(context, list)
        questions, contexts = self._side_by_side(question, context) if is_batch else ([question], [context])
        pairs = []
        for i, (q, c) in enumerate(zip(questions, contexts, strict=True)):
            suffix = f"[{i}]" if is_batch else ""
            texts = (read_text(q, f"question{suffix}", config), read_text(c, f"context{suffix}", config))
            pairs.append(texts if self._context == 1 else texts[::-1])
        refuse_above(config.max_length, max_seq_len=asked.max_seq_len)
        width = asked.max_seq_len or min(config.max_length, _MAX_SEQ_LEN)
        refuse_above(width - 1, doc_stride=asked.doc_stride)
        stride = asked.doc_stride
        if stride is None:
            stride = min(width // 2, _STRIDE) if config.stride is None else config.stride
        options = {
            "top_k": asked.top_k or config.top_k or 1,
            "max_answer_len": asked.max_answer_len,
            "impossible": asked.handle_impossible_answer,
            "align": asked.align_to_words,
        }
        windows = Windows(
            stride, width, cuts="second" if self._context == 1 else "first", whole="question",
            keeps_all=config.long_texts == "window",
        )  # fmt: skip
        return ParsedRequest(pairs, is_batch, options, windows)

    def field_of(self, request: ParsedRequest, row: int) -> str:
        """Return the context, because only it can be too long."""
        return f"context[{row}]" if request.is_batch else "context"

    def select_outputs(self, available: Sequence[str]) -> tuple[str, ...]:
        """Return `start_logits` and `end_logits`."""
        missing = [name for name in _OUTPUTS if name not in available]
        if missing:
            raise InvalidBundle(
                f"The model's outputs ({', '.join(available) or 'none'}) do not answer questions",
                hint=f"it needs {' and '.join(_OUTPUTS)}",
            )
        return _OUTPUTS

    def answer_bytes(self, prepared: Prepared, output_bytes: int) -> int:
        """Estimate: all candidate answers of every window, of at most `max_answer_len` tokens."""
        del output_bytes
        options = prepared.request.options
        answer_bytes = 0
        for row in prepared.rows:
            longest = min(options["max_answer_len"], row.n_tokens)
            spans = min(_spans_wanted(options), longest * row.n_tokens)
            answer_bytes += spans * (_ANSWER_BYTES + longest * _TOKEN_BYTES)
        return answer_bytes

    def decode(self, outputs: Tensors, prepared: Prepared) -> list[Mapping[str, Any]]:
        """Return each question's best answers over all windows."""
        rows, options = prepared.rows, prepared.request.options
        longest = max(row.n_tokens for row in rows)
        for name in _OUTPUTS:
            tensor = outputs.get(name)
            if tensor is None or tensor.ndim != 2 or len(tensor) != len(rows) or tensor.shape[1] < longest:
                shape = "missing" if tensor is None else f"of shape {list(tensor.shape)}"
                raise InvalidOutput(f"Output {name} is {shape} for {len(rows)} rows", hint="expected rows × tokens")
        side = self._config.padding_side
        results: list[Mapping[str, Any]] = []
        for pair, positions in zip(prepared.request.texts, windows_by_text(prepared), strict=True):
            by_text: dict[str, dict[str, Any]] = {}
            least_null = 1e6
            for position in positions:
                window = cast("Window", rows[position])
                start, end = (own_tokens(outputs[name], position, window.n_tokens, side) for name in _OUTPUTS)
                refuse_non_finite("start_logits", start)
                refuse_non_finite("end_logits", end)
                null = self._collect(by_text, pair[self._context], window, start, end, options)
                least_null = min(least_null, null)
            answers = list(by_text.values())
            if options["impossible"]:
                answers.append({"answer": "", "score": least_null, "start": 0, "end": 0})
            answers.sort(key=lambda answer: -answer["score"])
            best = answers[: options["top_k"]] or [{"answer": "", "score": 0.0, "start": 0, "end": 0}]
            results.append({**best[0], **({"answers": best} if options["top_k"] > 1 else {})})
        return results

    def _side_by_side(self, question: object, context: object) -> tuple[list[object], list[object]]:
        questions = question if isinstance(question, list) else None
        contexts = context if isinstance(context, list) else None
        size = len(questions if questions is not None else contexts or [])
        questions = [question] * size if questions is None else questions
        contexts = [context] * size if contexts is None else contexts
        if not size or len(questions) != len(contexts):
            raise InvalidInput(
                "question and context must be lists of one length, and not empty",
                field="question",
                hint="or send one of them as a single text that is used with each item of the other",
            )
        refuse_many(size, self._config, "question")
        return questions, contexts

    def _collect(
        self,
        answers: dict[str, dict[str, Any]],
        context: str,
        window: Window,
        start: NDArray[Any],
        end: NDArray[Any],
        options: Mapping[str, Any],
    ) -> float:
        """Add a window's answers, merging equal texts; return the probability that there is no answer."""
        allowed = window.sequence == self._context
        if self._config.cls_id is not None:  # models mark this token if there is no answer
            allowed = allowed | (window.ids == self._config.cls_id)
        starts, ends = (softmax(np.where(allowed, values, np.float32(_RULED_OUT))) for values in (start, end))
        null = float(starts[0] * ends[0])
        starts[0] = ends[0] = 0.0
        for first, last, score in _spans(starts, ends, _spans_wanted(options), options["max_answer_len"]):
            if not (allowed[first] and allowed[last]):
                continue
            begin, stop = self._characters(window, first, last, align=options["align"])
            text = context[begin:stop]
            known = answers.setdefault(text.lower(), {"answer": text, "score": 0.0, "start": begin, "end": stop})
            known["score"] += score
        return null

    def _characters(self, window: Window, first: int, last: int, *, align: bool) -> tuple[int, int]:
        """Return the characters of tokens `first` to `last`, widened to whole words if `align`."""
        offsets = window.offsets
        if align and window.words[first] >= 0 and window.words[last] >= 0:
            own = window.sequence == self._context
            begins = np.flatnonzero(own & (window.words == window.words[first]))
            ends = np.flatnonzero(own & (window.words == window.words[last]))
            if len(begins) and len(ends):
                return int(offsets[begins[0]][0]), int(offsets[ends[-1]][1])
        return int(offsets[first][0]), int(offsets[last][1])


def _spans_wanted(options: Mapping[str, Any]) -> int:
    """Return the number of spans to keep per window; more than requested, because merging reduces them."""
    return int(options["top_k"] * 2 + 10 if options["align"] else options["top_k"])


def _spans(
    starts: NDArray[np.float32], ends: NDArray[np.float32], wanted: int, longest: int
) -> list[tuple[int, int, float]]:
    """Return the best spans of at most `longest` tokens, best first, without those of probability 0.

    Only such spans are computed: the full square of a long window would take hundreds of megabytes.
    """
    size = len(starts)
    band = np.zeros((min(longest, size), size), np.float32)
    for gap in range(len(band)):
        band[gap, : size - gap] = starts[: size - gap] * ends[gap:]
    flat = band.reshape(-1)
    count = min(wanted, len(flat))
    best = np.argpartition(-flat, count - 1)[:count]
    best = best[np.argsort(-flat[best], kind="stable")]
    more, first = np.divmod(best, size)
    return [
        (f, f + m, score)
        for f, m, score in zip(first.tolist(), more.tolist(), flat[best].tolist(), strict=True)
        if score > 0
    ]

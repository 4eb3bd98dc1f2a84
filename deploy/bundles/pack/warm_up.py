"""The samples in a bundle (``warmup.json``): short, long and cut texts and batches, with PyTorch's answers.

The gateway lets every version answer them before it serves requests. Texts whose answer rounding could change are left
out, and the tolerance is the smallest that covers the rounding measured here.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import numpy as np

from deploy.bundles.judge import samples
from deploy.bundles.judge.parity import answer_of, read
from deploy.sync.model_folder.execution import Precision
from gateway.samples import difference
from preprocessing.errors import PreprocessingError
from preprocessing.processor import TextProcessor

Body = Mapping[str, Any]
Run = Callable[[Mapping[str, Any]], Mapping[str, Any]]

_LENGTHS: Final = (1, 16, 32, 64, 128, 256, 512)
_OWN: Final = 4
_TOLERANCES: Final = (1e-4, 3e-4, 1e-3, 3e-3, 0.01, 0.03, 0.1)
_LEAST: Final[Mapping[Precision, float]] = {"fp32": 1e-4, "bf16": 1e-3, "fp16": 0.01}
"""Rounding that another processor of the same kind may add to what was measured."""
_MARGIN: Final = 3.0
"""Multiple of the measured rounding that a sample must tolerate."""
_MAX_BYTES: Final = 1 << 20
_MAX_BYTES_TOGETHER: Final = 8 << 20


def bodies(processor: TextProcessor, own: Sequence[Body], rows: int) -> list[Body]:
    """Return the requests to record.

    They are texts of the user's own if there are any, texts of every length up to one that is cut, a batch of short and
    long texts, and a batch of ``rows`` short ones.
    """
    texts = samples.built_in(processor)
    counts = samples.token_counts(processor, texts)
    order = sorted(range(len(texts)), key=lambda i: counts[i])
    chosen = dict.fromkeys(min(order, key=lambda i: abs(counts[i] - n)) for n in _LENGTHS)
    longest = [i for i in order if counts[i] == counts[order[-1]]]
    chosen |= dict.fromkeys((*longest[:2], len(texts) - 1))
    step = max(1, len(own) // _OWN)
    short = [texts[order[i % min(len(order), rows)]] for i in range(rows)]
    mixed = [texts[i] for i in (order[0], order[-1], order[len(order) // 2], order[1], order[3 * len(order) // 4])]
    together = [samples.together(processor, group) for group in (mixed, short)]
    return [*(texts[i] for i in chosen), *together, *own[::step][:_OWN]]


def encode(processor: TextProcessor, asked: Sequence[Body], original: Run, candidate: Run, precision: Precision) -> str:
    """Return ``warmup.json``: ``asked`` with the ``original``'s answers. ``candidate`` runs the bundle's own graph."""
    outputs: list[tuple[Body, Mapping[str, Any], float]] = []
    for body in asked:
        prepared = processor.prepare(body)
        feeds = processor.collate_rows(prepared.rows)
        true = original(feeds)
        t, f = (read(answers, prepared, processor.config) for answers in (true, candidate(feeds)))
        outputs.append((body, true, max(float(np.abs(t[n] - f[n]).max()) for n in t)))
    rounding = _MARGIN * max((off for _, _, off in outputs), default=0.0)
    listed: list[dict[str, Any]] = []
    tolerance, size = _LEAST[precision], 0
    for body, true, _ in outputs:
        answers = _answers(processor, body, true, rounding)
        if answers[0] is None:
            continue
        needed = next((t for t in _TOLERANCES if all(not difference(answers[0], a, t) for a in answers[1:])), None)
        text = json.dumps(answers[0])
        if needed is None or len(text) > _MAX_BYTES or size + len(text) > _MAX_BYTES_TOGETHER:
            continue
        tolerance, size = max(tolerance, needed), size + len(text)
        listed.append({"body": body, "answer": answers[0]})
    listed = listed or [{"body": body} for body in asked]
    return json.dumps({"format": 1, "tolerance": tolerance, "samples": listed}, ensure_ascii=False) + "\n"


def _answers(processor: TextProcessor, body: Body, true: Mapping[str, Any], rounding: float) -> list[Any]:
    """Return the original's answer, then its answers with some rounding. An unreadable one agrees with none."""
    prepared = processor.prepare(body)
    noise = np.random.default_rng(0)
    found: list[Any] = []
    for most in (0.0, rounding, rounding, rounding):
        moved = {n: v + noise.uniform(-most, most, v.shape).astype(v.dtype) for n, v in true.items()}
        try:
            found.append(answer_of(processor, moved, prepared))
        except PreprocessingError:
            found.append(None)
    return [_rounded(found[0]), *found[1:]]


def _rounded(value: Any) -> Any:
    if isinstance(value, float):
        return round(value, 6)
    if isinstance(value, Mapping):
        return {k: _rounded(v) for k, v in value.items()}
    return [_rounded(v) for v in value] if isinstance(value, list) else value

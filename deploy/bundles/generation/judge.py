"""The accuracy gate for generated text: compares a graph's logits with those of ``transformers``' ``generate``.

The truth is PyTorch, greedy, with its own cache. The graph, in the program that runs it inside Triton, reads each
prompt at once and then PyTorch's tokens one by one with its cache, so every step can be compared even after a different
token. As in ``deploy/bundles/judge/parity.py``, a *fault* is never accepted: other tokens, another end token, a
length that the graph cannot run, a wrong cache. An *excess* may be accepted with a reason. Logits are compared less
their mean: a constant added to all of them changes no text.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from deploy.bundles.export.tokens import Reads, reader
from deploy.bundles.generation.original import Continued
from deploy.bundles.judge.parity import (
    EXACT,
    Parity,
    changed_files,
    changed_tokens,
    cosine,
    excesses,
)
from deploy.bundles.model_files import kept_files
from deploy.sync.runtime import generate_model
from deploy.tools.errors import DeployError, ExportFailed
from preprocessing.errors import PreprocessingError
from preprocessing.processor import TextProcessor

_CACHE_COSINE: Final = 0.99
"""Cosine below which a token read with the cache counts as having other logits than the same text read at once."""


class Generator:
    """One graph with a number of threads. Raises ``ExportFailed`` if it does not load or has the wrong form."""

    def __init__(self, path: Path, *, threads: int) -> None:
        import onnxruntime

        onnxruntime.disable_telemetry_events()
        try:
            self._graph = generate_model.open_graph(path, threads, onnxruntime)
        except generate_model.Refused as error:
            raise ExportFailed(str(error)) from error
        except Exception as error:
            raise ExportFailed(f"ONNX Runtime cannot load the graph: {generate_model.first_line(error)}") from error

    def follow(self, prompt: Sequence[int], tokens: Sequence[int]) -> NDArray[Any]:
        """Return the logits from which each of ``tokens`` would be chosen after ``prompt`` ([tokens, vocabulary]).

        The prompt is read at once, then the tokens one by one with the cache. Raises ``ExportFailed`` with the length
        that failed.
        """
        sequence = generate_model.Continued(None, list(prompt), generate_model.Settings(), None)
        found = []
        for token in tokens:
            try:
                found.append(np.array(self._graph.next_logits(sequence)))
            except Exception as error:
                raise ExportFailed(
                    f"the graph cannot read {len(sequence.ids) - sequence.n_read} token(s) after {sequence.n_read}: "
                    f"{generate_model.first_line(error)}"
                ) from error
            sequence.ids.append(token)
        return np.stack(found)


@dataclass(frozen=True, slots=True)
class Truth:
    """The original's answers, and the tokens and rendered conversations of transformers."""

    texts: Sequence[str]
    tokens: Sequence[Sequence[int]]
    """Each text's tokens by transformers' tokenizer; empty if the text is longer than the model reads."""
    continued: Sequence[Continued]
    eos_ids: frozenset[int]
    files: Mapping[str, str]
    """Hashes of the files that a bundle takes over unchanged."""


def find_truth(
    folder: Path, processor: TextProcessor, texts: Sequence[str], continued: Sequence[Continued],
    eos_ids: frozenset[int], *, reads: Reads = "transformers", files: Mapping[str, str] | None = None,
) -> Truth:  # fmt: skip
    """Combine PyTorch's answers with the tokens of the tokenizer in ``folder``, read by transformers or from its file.

    ``files`` are the hashes of the files that a bundle takes over, if they are not in ``folder`` unchanged.
    """
    tokenize, limit = reader(folder, reads), processor.config.max_length
    tokens = [found if len(found) <= limit else [] for found in map(tokenize, texts)]
    return Truth(texts, tokens, continued, eos_ids, files or kept_files(folder))


def judge(
    candidate: str, bundle: Path, truth: Truth, open_engine: Callable[[], Generator],
    options: Mapping[str, object] | None = None,
) -> Parity:  # fmt: skip
    """Compare a graph, with the tokenizer and configuration in ``bundle``, to the truth.

    ``decisions`` is the share of steps with the same best token. Never raises for a fault of the candidate: the result
    contains it.
    """
    texts = len(truth.continued)
    try:
        processor = TextProcessor.from_folder(bundle, options=options)
        faults = [*_token_faults(truth, processor), *_file_faults(truth, bundle, processor)]
        engine = open_engine()
        steps = [engine.follow(true.prompt, true.tokens) for true in truth.continued]
        at_once = [engine.follow((*true.prompt, *true.tokens[:-1]), true.tokens[-1:]) for true in truth.continued]
    except (PreprocessingError, DeployError) as error:
        return Parity(candidate, texts, faults=(error.message,))
    for true, found in zip(truth.continued, steps, strict=True):
        if found.shape != true.logits.shape:
            size, wanted = found.shape[-1], true.logits.shape[-1]
            return Parity(candidate, texts, faults=(*faults, f"logits cover {size} tokens instead of {wanted}"))
    if not all(np.isfinite(found).all() for found in (*steps, *at_once)):
        return Parity(candidate, texts, faults=(*faults, "logits are not finite"))
    return _compared(candidate, [true.logits for true in truth.continued], steps, at_once, faults)


def _compared(
    candidate: str, true: Sequence[NDArray[Any]], steps: Sequence[NDArray[Any]], at_once: Sequence[NDArray[Any]],
    faults: list[str],
) -> Parity:  # fmt: skip
    trues, founds, wholes = centred(true), centred(steps), centred(at_once)
    lasts = centred([found[-1:] for found in steps])
    cached = min(cosine(a, b) for a, b in zip(wholes, lasts, strict=True))
    if cached < _CACHE_COSINE:
        faults.append(
            f"a token read with the cache has other logits than the same text read at once (cosine {cached:.3f}): "
            "the graph uses its key/value cache wrongly, or scales activations over the whole text"
        )
    cosines = np.array([cosine(a, b) for a, b in zip(trues, founds, strict=True)])
    found = Parity(
        candidate, len(true),
        max_difference=max(float(np.abs(a - b).max()) for a, b in zip(trues, founds, strict=True)),
        scale=max(1.0, *(float(np.abs(one).max()) for one in trues)),
        mean_cosine=float(cosines.mean()), min_cosine=float(cosines.min()),
        decisions=float(np.mean([a.argmax() == b.argmax() for a, b in zip(trues, founds, strict=True)])),
        faults=tuple(faults),
    )  # fmt: skip
    return replace(found, excesses=tuple(excesses(found, EXACT, what="next tokens")))


def centred(logits: Sequence[NDArray[Any]]) -> list[NDArray[Any]]:
    """Return every step of every text less its own mean: a list of [vocabulary]."""
    return [step - step.mean() for steps in logits for step in steps]


def _token_faults(truth: Truth, processor: TextProcessor) -> list[str]:
    rows = [processor.prepare({"text": text}).rows[0].ids.tolist() for text in truth.texts]
    return changed_tokens(truth.texts, rows, truth.tokens)


def _file_faults(truth: Truth, bundle: Path, processor: TextProcessor) -> list[str]:
    faults = []
    ends = frozenset(processor.config.eos_ids)
    if ends != truth.eos_ids:
        faults.append(f"the bundle ends texts at the tokens {sorted(ends)} instead of {sorted(truth.eos_ids)}")
    return [*faults, *changed_files(bundle, truth.files)]

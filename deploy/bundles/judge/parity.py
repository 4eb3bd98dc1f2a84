"""The accuracy gate: compares how the original and a candidate answer the same texts through ``preprocessing``.

The truth is every text alone, unpadded, in PyTorch. A candidate answers rows of every length in batches of every size
(``probes``), which show whether its graph is right; then the texts, in padded batches of mixed length, which show how
exact its answers are: with the bundle's own tokenizer and labels, through the program that runs it in Triton. There are
two kinds of verdict. A *fault* means that the bundle is wrong
(other tokens, labels or files, a length that it cannot do, a mask that it ignores) and is never accepted. An *excess*
means that it is less exact than required, which a person may accept with a reason.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, Final

import numpy as np
import orjson
from numpy.typing import NDArray

from deploy.bundles.export.tokens import Reads, Tokenize, first_difference, reader, shown
from deploy.bundles.judge import probes
from deploy.bundles.judge.engine import Engine
from deploy.bundles.judge.probes import PER_TOKEN, Probes
from deploy.bundles.model_files import kept_files
from deploy.sync.model_folder.execution import Precision
from deploy.tools.errors import DeployError
from preprocessing.config import EMBEDDINGS, TaskConfig
from preprocessing.errors import PreprocessingError
from preprocessing.processor import TextProcessor
from preprocessing.types import Prepared

Answer = Mapping[str, Any]
Say = Callable[[str], None]

_OPTIONS: Final = orjson.OPT_SERIALIZE_NUMPY | orjson.OPT_NON_STR_KEYS


@dataclass(frozen=True, slots=True)
class Tolerance:
    """What a candidate may lose. ``difference`` is relative to the original's largest number above 1."""

    difference: float
    mean_cosine: float
    min_cosine: float
    decisions: float
    """Least share of texts with the same answer, numbers aside."""
    neighbours: float
    """Least share of embeddings whose nearest neighbour stays the same."""


EXACT: Final = Tolerance(1e-4, 0.99999, 0.9999, 0.999, 0.99)
REDUCED: Final = Tolerance(float("inf"), 0.999, 0.99, 0.99, 0.95)


def tolerance_for(precision: Precision) -> Tolerance:
    """Return the tolerance of a precision."""
    return EXACT if precision == "fp32" else REDUCED


@dataclass(frozen=True, slots=True)
class Parity:
    """What was found for one candidate; shares and cosines from 0 to 1."""

    candidate: str
    texts: int
    max_difference: float = float("nan")
    scale: float = 1.0
    mean_cosine: float = 0.0
    min_cosine: float = 0.0
    decisions: float = 0.0
    neighbours: float | None = None
    rows: int = 0
    """Rows of every length that were compared, besides the texts."""
    batches: int = 0
    """Batches of every size that contained them."""
    faults: tuple[str, ...] = ()
    excesses: tuple[str, ...] = ()

    @property
    def is_within(self) -> bool:
        """True if nothing is wrong and nothing exceeds the tolerance."""
        return not self.faults and not self.excesses


@dataclass(frozen=True, slots=True)
class Truth:
    """The original's answers and files.

    For each body: its tokens by transformers, raw outputs and finished answer. Also its answers to rows of every
    length.
    """

    bodies: Sequence[Mapping[str, Any]]
    tokens: Sequence[Sequence[int]]
    outputs: Sequence[Mapping[str, NDArray[Any]]]
    answers: Sequence[Answer]
    config: TaskConfig
    probes: Probes
    files: Mapping[str, str]
    """Hashes of the files that a bundle takes over unchanged."""


def find_truth(
    folder: Path, processor: TextProcessor, bodies: Sequence[Mapping[str, Any]],
    run: Callable[[Mapping[str, Any]], Mapping[str, Any]], say: Say, *, reads: Reads = "transformers",
    files: Mapping[str, str] | None = None,
) -> Truth:  # fmt: skip
    """Ask the original in ``folder`` every body, alone.

    ``run`` is PyTorch. Tokens are transformers' own, or those of the file. ``files`` are the hashes of the files that a
    bundle takes over, if they are not in ``folder`` unchanged.
    """
    tokenize = reader(folder, reads, processor.config.max_length)
    tokens: list[Sequence[int]] = []
    outputs: list[Mapping[str, NDArray[Any]]] = []
    answers: list[Answer] = []
    for number, body in enumerate(bodies):
        prepared = processor.prepare(body)
        tokens.append(_reference_tokens(tokenize, prepared))
        found = {name: np.asarray(value) for name, value in run(processor.collate_rows(prepared.rows)).items()}
        outputs.append(found)
        try:
            answers.append(answer_of(processor, found, prepared))
        except PreprocessingError as error:
            told = f"text {number + 1} of the samples, {shown(prepared.request.texts[0])}, cannot be answered"
            raise DeployError(f"{told}: {error.message}", hint=error.hint or "leave it out") from error
        if number % 20 == 19:
            say(f"PyTorch: {number + 1} of {len(bodies)} texts")
    probed = probes.make(processor, run, say)
    return Truth(bodies, tokens, outputs, answers, processor.config, probed, files or kept_files(folder))


def judge(
    candidate: str, bundle: Path, truth: Truth, engine: Callable[[], Engine], tolerance: Tolerance,
    options: Mapping[str, object] | None = None, *, say: Say,
) -> Parity:  # fmt: skip
    """Compare a candidate, with the tokenizer and configuration in ``bundle``, to the truth.

    Never raises for a fault of the candidate: the result contains it.
    """
    texts = len(truth.bodies)
    try:
        processor = TextProcessor.from_folder(bundle, options=options)
        opened = engine()
        processor = TextProcessor.from_folder(
            bundle, options=options, input_names=[p.name for p in opened.session.get_inputs()],
            output_names=opened.output_names,
        )  # fmt: skip
        prepared = [processor.prepare(body) for body in truth.bodies]
    except (PreprocessingError, DeployError) as error:
        return Parity(candidate, texts, faults=(error.message,))
    if wrong := [*_token_faults(truth, prepared), *_file_faults(truth, bundle, processor)]:
        return Parity(candidate, texts, faults=tuple(wrong))
    probed = probes.judge(truth.probes, processor, opened, tolerance.difference, say)
    if probed.faults:
        return Parity(candidate, texts, faults=probed.faults)
    try:
        answered = [opened.answer(processor.collate_rows(p.rows)) for p in prepared]
        found = _compared(candidate, truth, processor, prepared, answered, tolerance)
    except (PreprocessingError, DeployError) as error:
        return Parity(candidate, texts, faults=(error.message,))
    asked, together = truth.probes, (*found.excesses, *probed.excesses)
    return replace(found, rows=len(asked.rows), batches=len(asked.calls), excesses=together)


def _compared(
    candidate: str, truth: Truth, processor: TextProcessor, prepared: Sequence[Prepared],
    answered: Sequence[Mapping[str, Any]], tolerance: Tolerance,
) -> Parity:  # fmt: skip
    answers = [answer_of(processor, out, p) for out, p in zip(answered, prepared, strict=True)]
    is_embedding = processor.config.task == EMBEDDINGS
    true, found = (
        [_vector(read({n: o[n] for n in t}, p, processor.config), a, is_embedding=is_embedding)
         for o, t, p, a in zip(outputs, truth.outputs, prepared, of, strict=True)]
        for outputs, of in ((truth.outputs, truth.answers), (answered, answers))
    )  # fmt: skip
    cosines = np.array([cosine(a, b) for a, b in zip(true, found, strict=True)])
    parity = Parity(
        candidate, len(answered),
        max_difference=max(float(np.abs(a - b).max()) for a, b in zip(true, found, strict=True)),
        scale=max(1.0, *(float(np.abs(v).max()) for v in true)),
        mean_cosine=float(cosines.mean()), min_cosine=float(cosines.min()),
        decisions=float(np.mean([_decision(a) == _decision(b) for a, b in zip(truth.answers, answers, strict=True)])),
        neighbours=neighbours(true, found) if is_embedding and len(found) > 2 else None,
        faults=() if all(np.isfinite(v).all() for v in found) else ("an answer is not a number",),
    )  # fmt: skip
    return replace(parity, excesses=tuple(excesses(parity, tolerance)))


def read(outputs: Mapping[str, Any], prepared: Prepared, config: TaskConfig) -> dict[str, NDArray[Any]]:
    """Return the outputs that a head reads for one request, without the padding of a text with several rows.

    In the padding, a graph may answer anything, and PyTorch's answer there depends on how attention is computed.
    """
    found = {name: np.asarray(value) for name, value in outputs.items()}
    lengths = [row.n_tokens for row in prepared.rows]
    longest = max(lengths)
    if config.task not in PER_TOKEN or min(lengths) == longest:
        return found
    places = np.arange(longest)[None, :]
    counts = np.array(lengths)[:, None]
    is_read = places < counts if config.padding_side == "right" else places >= longest - counts
    return {name: v[is_read] if v.shape[:2] == is_read.shape else v for name, v in found.items()}


def excesses(found: Parity, tolerance: Tolerance) -> list[str]:
    """Return what exceeds the tolerance, briefly."""
    lines = []
    if not found.max_difference <= tolerance.difference * found.scale:
        lines.append(
            f"largest difference {found.max_difference:.1e} (allowed {tolerance.difference * found.scale:.1e})"
        )
    for name, least in (("mean_cosine", tolerance.mean_cosine), ("min_cosine", tolerance.min_cosine)):
        if not getattr(found, name) >= least:
            lines.append(f"{name.replace('_', ' ')} {getattr(found, name):.5f} (at least {least:g})")
    if not found.decisions >= tolerance.decisions:
        changed, most = _percent(1 - found.decisions, 1 - tolerance.decisions)
        lines.append(f"{changed} of the answers changed (at most {most})")
    if found.neighbours is not None and not found.neighbours >= tolerance.neighbours:
        changed, most = _percent(1 - found.neighbours, 1 - tolerance.neighbours)
        lines.append(f"{changed} of the nearest neighbours changed (at most {most})")
    return lines


def _percent(share: float, limit: float) -> tuple[str, str]:
    """Return both in per cent, with enough digits to tell them apart."""
    for digits in range(1, 8):
        shown, most = f"{share:.{digits}%}", f"{limit:.{digits}%}"
        if shown != most:
            break
    return shown, most


def cosine(one: NDArray[Any], other: NDArray[Any]) -> float:
    """Return the cosine of two vectors. A single number is compared as a direction, with a 1 next to it."""
    a, b = one.ravel().astype(np.float64), other.ravel().astype(np.float64)
    if a.size == 1:
        a, b = np.append(a, 1.0), np.append(b, 1.0)
    lengths = float(np.linalg.norm(a) * np.linalg.norm(b))
    return float(a @ b) / lengths if lengths else float(np.array_equal(a, b))


def neighbours(true: Sequence[NDArray[Any]], found: Sequence[NDArray[Any]]) -> float:
    """Return the share of vectors whose nearest other vector (by cosine) is the same in both lists."""

    def nearest(vectors: Sequence[NDArray[Any]]) -> NDArray[Any]:
        matrix = np.stack([v.ravel() for v in vectors]).astype(np.float64)
        matrix /= np.maximum(np.linalg.norm(matrix, axis=1, keepdims=True), 1e-12)
        similar = matrix @ matrix.T
        np.fill_diagonal(similar, -np.inf)
        return np.asarray(similar.argmax(1))

    return float(np.mean(nearest(true) == nearest(found)))


def _reference_tokens(tokenize: Tokenize, prepared: Prepared) -> Sequence[int]:
    if len(prepared.rows) > len(prepared.request.texts):
        return ()  # read in several windows, which transformers cuts differently: shorter texts show the tokenizer
    text = prepared.request.texts[0]
    return tokenize(*text) if isinstance(text, tuple) else tokenize(text)


def _token_faults(truth: Truth, prepared: Sequence[Prepared]) -> list[str]:
    """Return a sentence about texts whose tokens differ from the original's; texts without true tokens do not count."""
    found = [p.rows[0].ids.tolist() for p in prepared]
    wrong = [i for i, tokens in enumerate(truth.tokens) if tokens and found[i] != list(tokens)]
    if not wrong:
        return []
    first = wrong[0]
    return [
        f"the bundle's tokenizer makes other tokens than the original's for {len(wrong)} of {len(prepared)} texts, for "
        f"example for {shown(prepared[first].request.texts[0])}: {first_difference(found[first], truth.tokens[first])}"
    ]


def _file_faults(truth: Truth, bundle: Path, processor: TextProcessor) -> list[str]:
    config = processor.config
    for field_ in fields(TaskConfig):
        true, found = getattr(truth.config, field_.name), getattr(config, field_.name)
        if true != found:
            return [f"the bundle's {field_.name}: {str(found)[:200]} instead of {str(true)[:200]}"]
    files = kept_files(bundle)
    changed = [name for name in sorted({*files, *truth.files}) if files.get(name) != truth.files.get(name)]
    return [f"the bundle's {changed[0]} differs from the original's"] if changed else []


def answer_of(processor: TextProcessor, outputs: Mapping[str, Any], prepared: Prepared) -> Answer:
    """Return the finished answer to a request as JSON values. Raises ``PreprocessingError``."""
    names = processor.output_names or tuple(outputs)
    answer = processor.finish({name: np.asarray(outputs[name]) for name in names if name in outputs}, prepared)
    found = orjson.loads(orjson.dumps(answer, default=lambda value: value.tolist(), option=_OPTIONS))
    return found if isinstance(found, dict) else {"answer": found}


def _vector(outputs: Mapping[str, Any], answer: Answer, *, is_embedding: bool) -> NDArray[Any]:
    if is_embedding:
        return np.asarray(answer["embedding"], dtype=np.float32)
    return np.concatenate([np.asarray(value).ravel() for value in outputs.values()])


def _decision(answer: Answer) -> str:
    """Return the part of an answer that is a decision: its label, or everything that is not a fraction."""
    if "label" in answer:
        return str(answer["label"])

    def discrete(value: Any) -> Any:
        if isinstance(value, float):
            return None
        if isinstance(value, Mapping):
            return {k: discrete(v) for k, v in value.items()}
        if isinstance(value, list):
            return [discrete(v) for v in value] if not all(isinstance(v, float) for v in value) else None
        return value

    return json.dumps(discrete(answer), sort_keys=True)

"""The accuracy gate for generated text: compares a candidate's logits and tokens with ``transformers``' ``generate``.

The truth is PyTorch, greedy, with its own cache. A candidate reads each prompt at once and then PyTorch's tokens one by
one with its cache, so every step can be compared even after a different token. Then it continues the prompt alone. As
in ``deploy/bundles/judge/parity.py``, a *fault* is never accepted: other tokens, another end token, a different
rendering of the chat template, a length that the graph cannot run, a wrong cache. An *excess* may be accepted with a
reason. Logits are compared less their mean: a constant added to all of them changes no text, and if all were near −100,
cosines would be 1 whatever they say.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from deploy.bundles.export.tokens import Reads, first_difference, reader, shown
from deploy.bundles.generation import probes
from deploy.bundles.generation.engine import Generator
from deploy.bundles.generation.original import Continued
from deploy.bundles.generation.probes import Probes
from deploy.bundles.judge.parity import EXACT, Parity, Tolerance, changed_files, cosine, excesses
from deploy.bundles.model_files import kept_files
from deploy.tools.errors import DeployError, ExportFailed
from preprocessing.errors import PreprocessingError
from preprocessing.processor import TextProcessor

_CACHE_COSINE: Final = 0.99
"""Cosine below which a token read with the cache counts as having other logits than the same text read at once."""
_CHATS: Final = (
    [{"role": "user", "content": "What is the capital of Peru?"}],
    [
        {"role": "user", "content": "Hello!\nCan you <b>help</b> me?"},
        {"role": "assistant", "content": "  Of course. "},
        {"role": "user", "content": "Then count to 3."},
    ],
)


@dataclass(frozen=True, slots=True)
class TextParity(Parity):
    """What was found for one candidate.

    ``decisions`` is the share of steps with the same best token, each after PyTorch's tokens. ``companions`` is the
    largest difference between a token read with the cache and the same text read at once.
    """

    continued: float = 0.0
    """Share of the tokens before the first different one, when the candidate continues the prompt alone."""


@dataclass(frozen=True, slots=True)
class Truth:
    """The original's answers, and the tokens and rendered conversations of transformers."""

    texts: Sequence[str]
    tokens: Sequence[Sequence[int]]
    """Each text's tokens by transformers' tokenizer; empty if the text is longer than the model reads."""
    continued: Sequence[Continued]
    eos_ids: frozenset[int]
    chats: Sequence[str]
    """``_CHATS`` as rendered by transformers; empty for a model without a chat template."""
    files: Mapping[str, str]
    """Hashes of the files that a bundle takes over unchanged."""
    probes: Probes | None = None
    """Further probes of the model, besides the texts."""


def find_truth(
    folder: Path, processor: TextProcessor, texts: Sequence[str], continued: Sequence[Continued],
    eos_ids: frozenset[int], *, reads: Reads = "transformers", files: Mapping[str, str] | None = None,
    probed: Probes | None = None,
) -> Truth:  # fmt: skip
    """Combine PyTorch's answers with the tokens of the tokenizer in ``folder``, read by transformers or from its file.

    ``files`` are the hashes of the files that a bundle takes over, if they are not in ``folder`` unchanged; ``probed``
    are PyTorch's answers to the probes.
    """
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True)
    tokenize = reader(folder, reads)
    tokens = [tokenize(text) for text in texts]
    limit = processor.config.max_length
    within = [t if len(t) <= limit else [] for t in tokens]
    return Truth(texts, within, continued, eos_ids, _chats(tokenizer), files or kept_files(folder), probed)


def judge(
    candidate: str, bundle: Path, truth: Truth, open_engine: Callable[[], Generator], tolerance: Tolerance,
    options: Mapping[str, object] | None = None,
) -> TextParity:  # fmt: skip
    """Compare a candidate, with the tokenizer and configuration in ``bundle``, to the truth.

    Never raises for a fault of the candidate: the result contains it.
    """
    texts = len(truth.continued)
    try:
        processor = TextProcessor.from_folder(bundle, options=options)
        faults = [*_token_faults(truth, processor), *_file_faults(truth, bundle, processor)]
        engine = open_engine()
        steps = [engine.follow(true.prompt, true.tokens) for true in truth.continued]
        at_once = [engine.whole((*true.prompt, *true.tokens[:-1])) for true in truth.continued]
        alone = [engine.continue_(true.prompt, len(true.tokens)) for true in truth.continued]
    except (PreprocessingError, DeployError) as error:
        return TextParity(candidate, texts, faults=(error.message,))
    for true, found in zip(truth.continued, steps, strict=True):
        if found.shape != true.logits.shape:
            size, wanted = found.shape[-1], true.logits.shape[-1]
            return TextParity(candidate, texts, faults=(*faults, f"logits cover {size} tokens instead of {wanted}"))
    if not all(np.isfinite(found).all() for found in (*steps, *at_once)):
        return TextParity(candidate, texts, faults=(*faults, "logits are not finite"))
    trues = centred([true.logits for true in truth.continued])
    founds = centred(steps)
    wholes = centred([one[None] for one in at_once])
    lasts = centred([found[-1:] for found in steps])
    cached = min(cosine(a, b) for a, b in zip(wholes, lasts, strict=True))
    if cached < _CACHE_COSINE:
        faults.append(
            f"a token read with the cache has other logits than the same text read at once (cosine {cached:.3f}): "
            "the graph uses its key/value cache wrongly, or scales activations over the whole text"
        )
    cosines = np.array([cosine(a, b) for a, b in zip(trues, founds, strict=True)])
    best = [(a.argmax() == b.argmax()) for a, b in zip(trues, founds, strict=True)]
    parity = TextParity(
        candidate, texts,
        max_difference=max(float(np.abs(a - b).max()) for a, b in zip(trues, founds, strict=True)),
        scale=max(1.0, *(float(np.abs(one).max()) for one in trues)),
        mean_cosine=float(cosines.mean()), min_cosine=float(cosines.min()), decisions=float(np.mean(best)),
        companions=max(float(np.abs(a - b).max()) for a, b in zip(wholes, lasts, strict=True)),
        continued=float(np.mean([agreeing(t.tokens, a) for t, a in zip(truth.continued, alone, strict=True)])),
        faults=tuple(faults),
    )  # fmt: skip
    wrong, inexact = _probed(truth, engine, tolerance)
    return replace(
        parity, faults=(*faults, *wrong), excesses=(*excesses(parity, tolerance, what="next tokens"), *inexact)
    )


def _probed(truth: Truth, engine: Generator, tolerance: Tolerance) -> tuple[list[str], list[str]]:
    if truth.probes is None:
        return [], []
    try:
        return probes.judge(truth.probes, engine, tolerance.difference)
    except ExportFailed as error:
        return [error.message], []


def tolerance(overrides: Mapping[str, float]) -> Tolerance:
    """Return the tolerance of fp32; ``overrides`` (by field) win."""
    return replace(EXACT, **dict(overrides))


def centred(logits: Sequence[NDArray[Any]]) -> list[NDArray[Any]]:
    """Return every step of every text less its own mean: a list of [vocabulary]."""
    return [step - step.mean() for steps in logits for step in steps]


def agreeing(true: Sequence[int], found: Sequence[int]) -> float:
    """Return the share of tokens before the first different one."""
    same = next((i for i, (a, b) in enumerate(zip(true, found, strict=True)) if a != b), len(true))
    return same / len(true)


def _token_faults(truth: Truth, processor: TextProcessor) -> list[str]:
    wrong = []
    for text, tokens in zip(truth.texts, truth.tokens, strict=True):
        ours = processor.prepare({"text": text}).rows[0].ids.tolist()
        if tokens and ours != list(tokens):
            wrong.append((text, ours, tokens))
    if not wrong:
        return []
    text, ours, theirs = wrong[0]
    return [
        f"the bundle's tokenizer makes other tokens than the original's for {len(wrong)} of {len(truth.texts)} texts, "
        f"for example for {shown(text)}: {first_difference(ours, theirs)}"
    ]


def _file_faults(truth: Truth, bundle: Path, processor: TextProcessor) -> list[str]:
    faults = []
    ends = frozenset(processor.config.eos_ids)
    if ends != truth.eos_ids:
        faults.append(f"the bundle ends texts at the tokens {sorted(ends)} instead of {sorted(truth.eos_ids)}")
    if processor.chat is None and not processor.chat_fault and truth.chats:
        faults.append("the bundle has no chat template, the original has one")
    elif processor.chat is not None and not truth.chats:
        faults.append("the bundle has a chat template, the original has none")
    elif any(
        true and isinstance(ours, str) and ours != true
        for true, ours in zip(truth.chats, _rendered(processor), strict=False)
    ):
        faults.append("the bundle's chat template renders a conversation differently from transformers")
    return [*faults, *changed_files(bundle, truth.files)]


def why_no_chats(truth: Truth, processor: TextProcessor) -> str:
    """Return why ``processor`` refuses chats that transformers renders; empty if it does not."""
    refused = (ours for true, ours in zip(truth.chats, _rendered(processor), strict=False) if true)
    return processor.chat_fault or next((str(ours) for ours in refused if isinstance(ours, PreprocessingError)), "")


def _rendered(processor: TextProcessor) -> list[str | PreprocessingError]:
    """Return ``_CHATS`` as the gateway renders them, or why it refuses to; nothing without a template."""
    rendered: list[str | PreprocessingError] = []
    template = processor.chat
    for chat in _CHATS if template is not None else ():
        try:
            rendered.append(template.render(chat))  # type: ignore[union-attr] # just looked
        except PreprocessingError as error:
            rendered.append(error)
    return rendered


def _chats(tokenizer: Any) -> list[str]:
    if not tokenizer.chat_template:
        return []
    rendered = []
    for chat in _CHATS:
        try:
            rendered.append(str(tokenizer.apply_chat_template(chat, tokenize=False, add_generation_prompt=True)))
        except Exception:  # noqa: BLE001 - templates refuse what they like, with Jinja's errors or their own
            rendered.append("")
    return rendered

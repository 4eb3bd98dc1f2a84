"""The texts on which a candidate is judged: a built-in multilingual set of every length, or the user's own.

Pure. The built-in texts are combined from sentences in many languages and scripts and cut to token counts from the
shortest to what the model reads (at most 512); they are always the same for the same tokenizer. A user's file has one
text per line, or one JSON request body per line.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Mapping, Sequence
from itertools import cycle, islice
from pathlib import Path
from typing import Any, Final

from deploy.bundles.sentences import SENTENCES
from deploy.tools.errors import DeployError
from preprocessing.config import FILL_MASK, QUESTION_ANSWERING, RANKING, ZERO_SHOT
from preprocessing.errors import PreprocessingError
from preprocessing.processor import TextProcessor

MAX_TOKENS: Final = 512
MAX_SAMPLES: Final = 2000

_QUESTION: Final = "Where is the hotel?"

_CUT: Final = (1.3, 2.5)
"""Lengths of texts that are cut, as multiples of what the model reads."""

_ATTENTION_BYTES: Final = 96
"""Bytes of a layer per pair of tokens: two tables of numbers for each of a dozen heads."""

_LONG: Final = (24, 33, 48, 64, 65, 96, 127, 128, 129, 160, 200, 255, 256, 257, 300, 384, 385, 448, 511, 512)


def built_in(processor: TextProcessor) -> list[dict[str, Any]]:
    """Return bodies of every length up to 512 tokens, the longest, longer ones that are cut, and each sentence."""
    make = bodies_of(processor)
    bodies = [make(text) for text in SENTENCES]
    longest = judged_length(processor)
    chosen = [*(length for length in _LONG if length < longest), longest]
    for number, wanted in enumerate(chosen):
        text = _of_length(processor, wanted, start=number * 7)
        if text:
            bodies.append(make(text))
    cut = () if longest < processor.config.max_length else _CUT if longest <= MAX_TOKENS else _CUT[:1]
    for number, times in enumerate(cut):
        bodies.append(_masked_first(processor, _words(int(longest * times), start=3 + 11 * number), make))
    return [body for body in bodies if _is_usable(processor, body)]


def judged_length(processor: TextProcessor) -> int:
    """Return the longest row, in tokens, that is judged.

    It is the longest that the model reads, or that whose attention fits into half of this machine's free memory.
    """
    try:
        free = re.search(r"(?m)^MemAvailable:\s*(\d+) kB", Path("/proc/meminfo").read_text())
    except OSError:
        free = None
    fits = math.isqrt(int(free[1]) * 1024 // 2 // _ATTENTION_BYTES) if free else processor.config.max_length
    return min(processor.config.max_length, max(fits, MAX_TOKENS))


def from_file(path: Path, processor: TextProcessor) -> list[dict[str, Any]]:
    """Return the request bodies of a user's file. Raises ``DeployError`` with the line that cannot be used."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise DeployError(f"--samples {path} cannot be read: {error}") from error
    bodies: list[dict[str, Any]] = []
    make = bodies_of(processor)
    for number, line in enumerate(lines[: MAX_SAMPLES + 1], 1):
        if not line.strip():
            continue
        body: Any = make(line)
        if line.lstrip().startswith("{"):
            try:
                body = json.loads(line)
            except ValueError as error:
                raise DeployError(f"--samples {path}, line {number}, is not JSON: {error}") from error
        try:
            prepared = processor.prepare(body)
        except PreprocessingError as error:
            raise DeployError(f"--samples {path}, line {number}: {error}") from error
        if prepared.is_batch:
            raise DeployError(f"--samples {path}, line {number}: give one text per line, not a list")
        bodies.append(body)
    if len(bodies) < 2 or len(bodies) > MAX_SAMPLES:
        raise DeployError(f"--samples {path} holds {len(bodies)} texts; give 2 to {MAX_SAMPLES}")
    return bodies


def bodies_of(processor: TextProcessor) -> Callable[[str], dict[str, Any]]:
    """Return a function that makes a request body of the processor's task from one text."""
    config = processor.config
    if config.task == RANKING:
        return lambda text: {"query": _QUESTION, "documents": [text]}
    if config.task == ZERO_SHOT:
        return lambda text: {"text": text, "parameters": {"candidate_labels": ["travel"]}}
    if config.task == QUESTION_ANSWERING:
        return lambda text: {"question": _QUESTION, "context": text}
    if config.task == FILL_MASK:
        mask = str(processor.tokenizer.token_of(config.mask_id)) if config.mask_id is not None else "[MASK]"
        return lambda text: {"text": f"{text} {mask}"}
    return lambda text: {"text": text}


def together(processor: TextProcessor, bodies: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return one request for several texts, each made by ``bodies_of``."""
    task = processor.config.task
    if task == RANKING:
        return {**bodies[0], "documents": [text for body in bodies for text in body["documents"]]}
    names = ("question", "context") if task == QUESTION_ANSWERING else ("text",)
    return {**bodies[0], **{name: [body[name] for body in bodies] for name in names}}


def token_counts(processor: TextProcessor, bodies: Sequence[Mapping[str, Any]]) -> list[int]:
    """Return the number of tokens of each body."""
    return [max(row.n_tokens for row in processor.prepare(body).rows) for body in bodies]


def _of_length(processor: TextProcessor, wanted: int, *, start: int) -> str:
    """Return words of running sentences with ``wanted`` tokens, or slightly fewer."""
    make = bodies_of(processor)
    words = _words(wanted * 2, start=start)
    low, high = 1, len(words)
    while low < high:
        middle = (low + high + 1) // 2
        rows = processor.prepare(make(" ".join(words[:middle]))).rows
        if max(row.n_tokens for row in rows) <= wanted and not any(row.truncated for row in rows):
            low = middle
        else:
            high = middle - 1
    return " ".join(words[:low])


def _words(count: int, *, start: int) -> list[str]:
    words: list[str] = []
    sentences = islice(cycle(SENTENCES), start, None)
    while len(words) < count:
        words += next(sentences).split()
    return words


def _masked_first(
    processor: TextProcessor, words: Sequence[str], make: Callable[[str], dict[str, Any]]
) -> dict[str, Any]:
    """Return the body of a text that is too long; for a fill-mask task, with the mask in the part that is kept."""
    if processor.config.task != FILL_MASK:
        return make(" ".join(words))
    return {"text": f"{make('')['text'].strip()} {' '.join(words)}"}


def _is_usable(processor: TextProcessor, body: Mapping[str, Any]) -> bool:
    try:
        row = processor.prepare(body).rows[0]
    except PreprocessingError:
        return False
    config = processor.config
    return row.n_tokens > 0 and (config.task != FILL_MASK or config.mask_id in row.ids)

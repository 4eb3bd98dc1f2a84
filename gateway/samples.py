"""Stored samples of a bundle (``warmup.json``): what to warm a version up with, and what it has to answer.

Written when a model is exported or registered, read by ``assemble`` when a version is built: the answers that a version
gives here, on this Triton and this machine, are compared with those it gave when it was made. Pure but for ``read``.
The format is documented in docs/canary.md.

Public: ``deploy`` may import it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from gateway.errors import SpecFault

FILE: Final = "warmup.json"
HOOK: Final = "preprocess.py"
"""The code a bundle brings along; samples are recorded with it."""
FORMAT: Final = 1
TOLERANCE: Final = 0.01
"""How far a number may be off if the file does not say it."""

_MAX_BYTES: Final = 16 << 20
_MISSING: Final = object()


@dataclass(frozen=True, slots=True)
class Sample:
    """One request body and, if it was recorded, the answer to it; both as JSON values."""

    body: Any
    answer: Any = _MISSING

    @property
    def has_answer(self) -> bool:
        """False for a sample that only warms up."""
        return self.answer is not _MISSING


@dataclass(frozen=True, slots=True)
class Samples:
    """The samples of a bundle. A number may differ by ``tolerance``, or by that share of what is expected above 1."""

    samples: tuple[Sample, ...]
    tolerance: float = TOLERANCE


def read(bundle: Path) -> Samples | None:
    """Return the samples of a bundle, None if it has none. Raises ``SpecFault`` for a file that cannot be used."""
    path = bundle / FILE
    try:
        if path.stat().st_size > _MAX_BYTES:
            raise SpecFault(f"{FILE} is larger than {_MAX_BYTES >> 20} MiB", hint="a few dozen samples are enough")
        content = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except (OSError, ValueError, RecursionError) as error:
        raise SpecFault(f"{FILE} cannot be read: {error}", hint="write it again, or leave it out") from error
    return parse(content)


def parse(content: object) -> Samples:
    """Return the samples in a decoded ``warmup.json``. Raises ``SpecFault`` saying what is wrong with it."""
    if not isinstance(content, Mapping):
        raise SpecFault(f"{FILE} must hold an object with samples")
    if content.get("format", FORMAT) != FORMAT:
        raise SpecFault(f"{FILE} has format {content['format']!r}; this version reads {FORMAT}")
    tolerance = content.get("tolerance", TOLERANCE)
    if isinstance(tolerance, bool) or not isinstance(tolerance, int | float) or not 0 <= tolerance < float("inf"):
        raise SpecFault(f"{FILE}: tolerance must be a number of at least 0, not {tolerance!r}")
    listed = content.get("samples")
    if not isinstance(listed, list) or not listed:
        raise SpecFault(f"{FILE}: samples must be a list of objects with a body")
    found = []
    for number, item in enumerate(listed):
        if not isinstance(item, Mapping) or "body" not in item:
            raise SpecFault(f"{FILE}: samples[{number}] must be an object with a body")
        found.append(Sample(item["body"], item.get("answer", _MISSING)))
    return Samples(tuple(found), float(tolerance))


def difference(expected: object, actual: object, tolerance: float, where: str = "answer") -> str:
    """Return the first thing in which ``actual`` is not what is expected, in one sentence; empty when it agrees.

    Strings, booleans, nulls and whole numbers on both sides must be equal; other numbers may differ by ``tolerance``,
    above 1 by that share of the expected one. Lists must be as long; lists of objects that each have a label of their
    own are compared label by label, in any order. Objects may hold more than is expected.
    """
    if _is_number(expected) and _is_number(actual):
        return _numbers(expected, actual, tolerance, where)
    if isinstance(expected, Mapping):
        if not isinstance(actual, Mapping):
            return f"{where} is {_shown(actual)} instead of an object"
        for key, value in expected.items():
            if key not in actual:
                return f"{where} has no {key}"
            if found := difference(value, actual[key], tolerance, f"{where}.{key}"):
                return found
        return ""
    if isinstance(expected, list):
        if not isinstance(actual, list):
            return f"{where} is {_shown(actual)} instead of a list"
        if len(expected) != len(actual):
            return f"{where} has {len(actual)} items instead of {len(expected)}"
        labelled, other = _by_label(expected), _by_label(actual)
        if labelled and other:
            return difference(labelled, other, tolerance, where)
        for number, (one, two) in enumerate(zip(expected, actual, strict=True)):
            if found := difference(one, two, tolerance, f"{where}[{number}]"):
                return found
        return ""
    if type(expected) is type(actual) and expected == actual:
        return ""
    return f"{where} is {_shown(actual)} instead of {_shown(expected)}"


def _numbers(expected: Any, actual: Any, tolerance: float, where: str) -> str:
    if isinstance(expected, int) and isinstance(actual, int):
        agrees = expected == actual
    else:
        agrees = abs(actual - expected) <= tolerance * max(1.0, abs(expected))
    return "" if agrees else f"{where} is {actual:.6g} instead of {expected:.6g} (tolerance {tolerance:g})"


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _by_label(items: Sequence[Any]) -> dict[str, Any]:
    labels = {str(item["label"]): item for item in items if isinstance(item, Mapping) and "label" in item}
    return labels if len(labels) == len(items) else {}


def _shown(value: object) -> str:
    text = json.dumps(value, default=str, ensure_ascii=False)
    return text if len(text) <= 80 else f"{text[:77]}…"

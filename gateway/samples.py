"""Stored samples of a bundle (``warmup.json``): requests that warm a version up, and the answers it must give.

Written when a model is exported or registered, and read by ``assemble`` when a version is built. It compares the
answers of the version on this Triton and machine with those recorded when the model was made. Pure, except for
``read``. The format is documented in docs/versions.md.

Public: ``deploy`` may import it.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Final, Literal

from pydantic import Field, TypeAdapter, ValidationError

from gateway.errors import SpecFault
from preprocessing.model_files import read_json

FILE: Final = "warmup.json"
HOOK: Final = "preprocess.py"
"""The hook code inside a bundle; samples are recorded with it."""
TOLERANCE: Final = 0.01
"""The tolerance of numbers if the file states none."""

_MAX_BYTES: Final = 16 << 20
_MISSING: Final = object()


@dataclass(frozen=True, slots=True)
class Sample:
    """A request body and the recorded answer, if there is one; both as JSON values."""

    body: Any
    answer: Any = _MISSING

    @property
    def has_answer(self) -> bool:
        """Whether an answer was recorded; if not, the sample only warms up."""
        return self.answer is not _MISSING


@dataclass(frozen=True, slots=True)
class Samples:
    """The samples of a bundle. Numbers may differ by ``tolerance``: absolute up to 1, relative above."""

    samples: Annotated[tuple[Sample, ...], Field(min_length=1)]
    tolerance: Annotated[float, Field(ge=0, strict=True, allow_inf_nan=False)] = TOLERANCE
    format: Literal[1] = 1


_FILE: Final = TypeAdapter(Samples)


def read(bundle: Path) -> Samples | None:
    """Return the samples of a bundle; None if it has none. Raises ``SpecFault`` for an invalid file."""
    try:
        content = read_json(bundle / FILE, _MAX_BYTES)
    except FileNotFoundError:
        return None
    except (OSError, ValueError, RecursionError) as error:
        raise SpecFault(f"{FILE} cannot be read: {error}", hint="write it again, or leave it out") from error
    return parse(content)


def parse(content: object) -> Samples:
    """Return the samples in a decoded ``warmup.json``. Raises ``SpecFault`` with the reason if it is invalid."""
    try:
        return _FILE.validate_python(content)
    except ValidationError as error:
        raise SpecFault(f"{FILE}: {error.errors()[0]['loc']}: {error.errors()[0]['msg']}") from error


def difference(
    expected: object, actual: object, tolerance: float, where: str = "answer", ignored: Collection[str] = ()
) -> str:
    """Return the first difference of ``actual`` from ``expected`` as a sentence; empty if they agree.

    Strings, booleans, nulls and two integers must be equal. Other numbers may differ by ``tolerance``: absolute up to
    1, relative to the expected number above. Lists must have the same length; lists of objects with different labels
    are compared by label, in any order. Objects may have more keys than expected, and keys that are ``ignored`` may
    differ.
    """
    if _is_number(expected) and _is_number(actual):
        return _numbers(expected, actual, tolerance, where)
    if isinstance(expected, Mapping):
        if not isinstance(actual, Mapping):
            return f"{where} is {_shown(actual)} instead of an object"
        for key, value in expected.items():
            if key in ignored:
                continue
            if key not in actual:
                return f"{where} has no {key}"
            if found := difference(value, actual[key], tolerance, f"{where}.{key}", ignored):
                return found
        return ""
    if isinstance(expected, list):
        if not isinstance(actual, list):
            return f"{where} is {_shown(actual)} instead of a list"
        if len(expected) != len(actual):
            return f"{where} has {len(actual)} items instead of {len(expected)}"
        labelled, other = _by_label(expected), _by_label(actual)
        if labelled and other:
            return difference(labelled, other, tolerance, where, ignored)
        for number, (wanted, got) in enumerate(zip(expected, actual, strict=True)):
            if found := difference(wanted, got, tolerance, f"{where}[{number}]", ignored):
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

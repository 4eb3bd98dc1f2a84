"""References of drift: how often each value of a variable occurred, and how far current shares are from that.

Pure, but for ``References``. A variable is counted in fixed bins (``watch``), whether or not it has a
reference; a reference is nothing but counts in such bins. Whether a change is real, and whether to alarm, is judged in
the controller (``deploy/controller/drift``).

Public: ``deploy`` may import it.
"""

from __future__ import annotations

import contextlib
import json
import logging
import math
from bisect import bisect_left
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Final, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, Field, FiniteFloat, ValidationError

from gateway.metrics.variables import COSINE, UNUSUAL

FORMAT: Final = 1
FILE: Final = "reference.json"
"""File name of a reference in a model folder."""

BINS: Final = 10
"""About so many bins has a reference of a number."""
OTHER: Final = "other"
"""The bin of categories that are not in the reference."""
MISSING: Final = "missing"
"""The bin of requests without a usable value of the variable."""
ABOVE: Final = "+Inf"
"""The bin of numbers above all bounds."""

ALARM_DAYS: Final = 30.0
"""Default of the expected time between two false alarms of an endpoint, in days."""
SMOOTHING: Final = 0.5
"""Added to every bin's count, so that an empty bin has a finite distance."""

MAX_WORDS: Final = 1000
"""Most words in a reference."""

_MAX_VALUES: Final = 100

_Count = Annotated[float, Field(ge=0, allow_inf_nan=False)]

Floats = NDArray[np.float64]
Bins = Mapping[str, float]
"""How often a variable had a value of each bin, by name. Of a number a bin is named by its upper bound (inclusive, as
``le``), the last is ``+Inf``; of categories by its value, and there is ``other``. Both kinds have ``missing``.
"""

_log = logging.getLogger("triton_gateway.metrics")


class BadReference(ValueError):
    """A reference file cannot be used; the message says why."""


def bin_of(bound: float) -> str:
    """Return the name of a number's bin by its upper bound."""
    return f"{bound:.12g}" if bound < math.inf else ABOVE


def is_ordered(bins: Bins) -> bool:
    """Whether the bins are those of a number."""
    return OTHER not in bins


def in_order(counts: Bins) -> dict[str, float]:
    """Return bins in order: numbers by size or categories by count, ``other`` of categories, ``missing``.

    Raises ``ValueError`` if a bin of a number is not one.
    """
    named = {name: float(count) for name, count in counts.items() if name not in (OTHER, MISSING)}
    if ABOVE in named:
        ordered = {bin_of(float(name)): named[name] for name in sorted(named, key=float)}
    else:
        ordered = {name: named[name] for name in sorted(named, key=lambda name: (-named[name], name))}
        ordered[OTHER] = float(counts.get(OTHER, 0))
    return {**ordered, MISSING: float(counts.get(MISSING, 0))}


def reference_of(counts: Bins) -> dict[str, float]:
    """Return a reference made of a variable's counts. Raises ``BadReference`` if nothing was counted.

    Neighbouring bins of a number are joined to about ten of equal frequency. If the highest bin with values is one of
    these, what lies above has an empty bin of its own. Categories that never occurred are part of ``other``, as are the
    rarest beyond a hundred.
    """
    bins = in_order(counts)
    total = sum(count for name, count in bins.items() if name not in (OTHER, MISSING))
    if total <= 0:
        raise BadReference("no observations")
    if not is_ordered(bins):
        kept = [name for name, count in bins.items() if name not in (OTHER, MISSING) and count > 0][:_MAX_VALUES]
        return folded(bins, dict.fromkeys((*kept, OTHER, MISSING), 0.0))
    bounds, running, left = [], 0.0, total
    for name, count in bins.items():
        running, left = running + count, left - count
        fills = [one >= total / BINS * 0.999 for one in (running, count)]
        if name not in (ABOVE, MISSING) and fills[0] and (left > 0 or fills[1]):
            bounds.append(name)
            running = 0.0
    return folded(bins, dict.fromkeys((*bounds, ABOVE, MISSING), 0.0))


def folded(counts: Bins, bins: Collection[str]) -> dict[str, float]:
    """Return how many of ``counts`` fall into each of a reference's ``bins``, in their order.

    Bins of a number are joined; categories that the reference does not have are ``other``.
    """
    found = dict.fromkeys(bins, 0.0)
    edges = [] if OTHER in found else [float(name) for name in found if name != MISSING]
    names = list(found)
    for name, count in counts.items():
        if name not in found:
            name = OTHER if OTHER in found else names[bisect_left(edges, float(name))]
        found[name] += count
    return found


@dataclass(frozen=True, slots=True)
class Reference:
    """The bins of each variable by name, the usual words of the reference's texts (the most frequent first), and the
    mean of the directions of its embeddings; empty if unknown.
    """

    bins: Mapping[str, Bins] = field(default_factory=dict)
    words: tuple[str, ...] = ()
    mean: tuple[float, ...] = ()


def shares(counts: Sequence[float] | Floats) -> Floats:
    """Return smoothed shares of counts: ``(count + 0.5) / (total + 0.5·B)``."""
    data = np.asarray(counts, dtype=np.float64)
    smoothed: Floats = (data + SMOOTHING) / (data.sum() + SMOOTHING * data.size)
    return smoothed


def beside(reference: Bins, counts: Bins) -> tuple[tuple[str, ...], Floats, Floats]:
    """Return bins in order, the reference's share of each (smoothed), and how often each was counted.

    Numbers are in the reference's bins; categories that it does not have are listed by their own names.
    """
    bins = reference
    if not is_ordered(bins):
        news = {name: 0.0 for name, count in in_order(counts).items() if count > 0 and name not in bins}
        last = (OTHER, MISSING)
        bins = {name: bins[name] for name in bins if name not in last} | news | {name: bins[name] for name in last}
    return tuple(bins), shares([*bins.values()]), np.array([*folded(counts, bins).values()])


def encode(reference: Reference, **about: object) -> str:
    """Return the text of a reference file; ``about`` is additional information for people."""
    found = {
        "format": FORMAT, **about, "variables": {name: {**bins} for name, bins in sorted(reference.bins.items())},
        "words": reference.words, "mean": [float(f"{value:.6g}") for value in reference.mean],
    }  # fmt: skip
    return json.dumps({name: value for name, value in found.items() if value}, indent=2, ensure_ascii=False)


def decode(text: str) -> Reference:
    """Read a reference file. Raises ``BadReference`` with the reason."""
    try:
        read = _File.model_validate_json(text)
        bins = {name: in_order(counts) for name, counts in read.variables.items()}
    except ValidationError as error:
        fault = error.errors(include_url=False)[0]
        raise BadReference(f"{FILE}: {'.'.join(map(str, fault['loc']))}: {fault['msg']}") from error
    except ValueError as error:
        raise BadReference(f"{FILE}: {error}") from error
    if empty := [name for name, counts in bins.items() if sum(counts.values()) <= 0]:
        raise BadReference(f"{FILE}: variable {empty[0]} has no counts")
    if (UNUSUAL in bins and not read.words) or (COSINE in bins and not any(read.mean)):
        raise BadReference(f"{FILE}: the variable {UNUSUAL} needs words, and {COSINE} a mean")
    return Reference(bins, read.words, read.mean)


class _File(BaseModel):
    """A reference file."""

    format: Literal[1]
    variables: dict[str, Annotated[dict[str, _Count], Field(max_length=_MAX_VALUES + 2)]]
    words: Annotated[tuple[str, ...], Field(max_length=MAX_WORDS)] = ()
    mean: tuple[FiniteFloat, ...] = ()


class References:
    """A folder of captured references, ``ENDPOINT.json`` and ``ENDPOINT/VERSION.json``, by endpoint url.

    The reconcile loop calls ``read`` in a thread whenever it reads the serving Task. A file written by ``triton-gateway
    drift capture``, or a changed ConfigMap, is therefore used without a restart.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._seen: dict[Path, tuple[int, int]] = {}
        self._found: dict[str, Reference] = {}

    def read(self) -> bool:
        """Read all files if any has changed; True if so. Never raises: unusable files are logged then."""
        seen: dict[Path, tuple[int, int]] = {}
        with contextlib.suppress(OSError):  # a file that went meanwhile is missed, and seen to be gone the next time
            for file in sorted(self._folder.glob("**/*.json")):
                stat = file.stat()
                seen[file] = stat.st_mtime_ns, stat.st_size
        if seen == self._seen:
            return False
        self._seen, self._found = seen, {}
        for file in seen:
            try:
                url = file.relative_to(self._folder).with_suffix("").as_posix()
                self._found[url] = decode(file.read_text(encoding="utf-8"))
            except (OSError, ValueError) as error:
                _log.warning("reference %s cannot be used: %s", file, error)
        return True

    def of(self, url: str) -> Reference | None:
        """Return the reference of an endpoint url; None if there is none."""
        return self._found.get(url)

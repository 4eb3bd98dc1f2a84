"""Drift without raw data: bins of a reference distribution, and how far the shares of current counts are from them.

Pure, but for ``References``. ``variable_counts`` counts values into these bins. Whether a change is real, and whether
to alarm, is judged in the controller (``deploy/controller/drift``).

Public: ``deploy`` may import it.
"""

from __future__ import annotations

import hashlib
import json
import logging
import math
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, Literal

import numpy as np
from numpy.typing import NDArray

from gateway.metrics.variables import COSINE, UNUSUAL

FORMAT: Final = 1
FILE: Final = "reference.json"
"""File name of a reference in a model folder."""

BINS: Final = 10
OTHER: Final = "other"
"""The bin of categories that are not in the reference."""
MISSING: Final = "missing"
"""The bin of requests without a usable value of the variable."""

ALARM_DAYS: Final = 30.0
"""Default of the expected time between two false alarms of an endpoint, in days."""
SHIFT_SIGMAS: Final = 3.29
"""A share counts as moved beyond this many standard deviations of noise: 99.9 %."""
SMOOTHING: Final = 0.5
"""Added to every bin's count, so that an empty bin has a finite distance."""

MAX_WORDS: Final = 1000
"""Most words in a reference."""

_MAX_VALUES: Final = 100
_MAX_DAYS: Final = 10_000
_MAX_NEW: Final = 3
"""Most new values that are named in one bin."""

Floats = NDArray[np.float64]

_log = logging.getLogger("triton_gateway.metrics")


class BadReference(ValueError):
    """A reference file cannot be used; the message says why."""


@dataclass(frozen=True, slots=True)
class Bins:
    """The bins of one variable, and the reference's count in each.

    ``scalar``: ``edges`` are the upper bounds of all bins but the last, inclusive (as ``le``). ``enum``: one bin per
    value, then ``other``. Both kinds end with ``missing``. ``counts`` are in the order of ``names``.
    """

    kind: Literal["scalar", "enum"]
    edges: tuple[float, ...]
    values: tuple[str, ...]
    counts: tuple[float, ...]

    @property
    def names(self) -> tuple[str, ...]:
        """The bins' names in order, as in the ``bin`` label."""
        if self.kind == "scalar":
            return (*(f"{edge:g}" for edge in self.edges), "+Inf", MISSING)
        return (*self.values, OTHER, MISSING)

    @property
    def id(self) -> str:
        """A hash of the content, which keeps counts for different references apart."""
        content = json.dumps([self.kind, self.edges, self.values, self.counts])
        return hashlib.sha256(content.encode()).hexdigest()[:8]

    @property
    def total(self) -> float:
        """Number of values in the reference."""
        return sum(self.counts)

    def ratios(self) -> tuple[float, ...]:
        """Return the reference's shares: smoothed, all above 0, with a sum of 1."""
        return tuple(float(share) for share in shares(self.counts))

    def index(self, value: float | str | None) -> int:
        """Return the index of the bin of a value; None is the bin ``missing``."""
        if value is None:
            return len(self.counts) - 1
        if self.kind == "scalar":
            return bisect_left(self.edges, float(value))
        return self.values.index(str(value)) if value in self.values else len(self.values)


@dataclass(frozen=True, slots=True)
class Words:
    """The usual words, the most frequent first, of the ``texts`` texts that they were learned from."""

    texts: float
    usual: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Mean:
    """The mean of the directions of a number of embeddings."""

    vectors: float
    values: tuple[float, ...]


class Reference(dict[str, Bins]):
    """The bins of each variable by name, the words of the reference's texts, and the mean of its embeddings.

    Words and mean are None if unknown.
    """

    def __init__(
        self, bins: Mapping[str, Bins] = MappingProxyType({}), words: Words | None = None, mean: Mean | None = None
    ) -> None:
        super().__init__(bins)
        self.words, self.mean = words, mean

    def over(self, other: Reference) -> Reference:
        """Return this reference, completed by what only ``other`` has.

        A variable that is counted with words, or with a mean, is that of the reference whose words or mean are used.
        """
        found = {**other, **self}
        of_words = self if self.words is not None else other
        of_mean = self if self.mean is not None else other
        for name, has_it, of in (
            (UNUSUAL, of_words.words is not None, of_words), (COSINE, of_mean.mean is not None, of_mean)
        ):  # fmt: skip
            if has_it:
                found.pop(name, None)
                found |= {name: of[name]} if name in of else {}
        return Reference(found, of_words.words, of_mean.mean)


def scalar_bins(values: Sequence[float] | Floats, *, bins: int = BINS) -> Bins:
    """Return equal-frequency bins of ``values``; fewer if values repeat. Raises ``BadReference``.

    If the highest value alone fills a bin (for example a share that is always 0), values above it get a bin of their
    own, because they never occurred in the reference.
    """
    data = np.asarray(values, dtype=np.float64)
    if not data.size or not np.isfinite(data).all():
        raise BadReference("a reference needs finite numbers")
    quantiles = np.quantile(data, [k / bins for k in range(1, bins)], method="inverted_cdf")
    highest = data.max()
    fills_a_bin = np.count_nonzero(data == highest) >= data.size / bins
    edges = [float(f"{edge:g}") for edge in np.unique(quantiles) if edge < highest or fills_a_bin]
    return _counted(tuple(sorted(set(edges))), data)


def _counted(edges: tuple[float, ...], data: Floats) -> Bins:
    counts = np.bincount(np.searchsorted(np.asarray(edges), data, side="left"), minlength=len(edges) + 1)
    return Bins("scalar", edges, (), (*(float(c) for c in counts), 0.0))


def bucket_bins(
    bounds: Sequence[float], counts: Sequence[float], *, bins: int = BINS, missing: float = 0
) -> Bins:  # fmt: skip
    """Return bins of about equal frequency made of whole histogram buckets (``counts`` are not cumulative).

    If the highest non-empty bucket alone fills a bin, values above it get an empty bin of their own, as in
    ``scalar_bins``. Raises ``BadReference``.
    """
    total = sum(counts)
    if total <= 0:
        raise BadReference("no observations")
    edges: list[float] = []
    merged: list[float] = []
    running = 0.0
    for bound, count in zip(bounds, counts, strict=True):
        running += count
        left = total - sum(merged) - running
        fills_a_bin = count >= total / bins * 0.999
        if math.isfinite(bound) and running >= total / bins * 0.999 and (left > 0 or fills_a_bin):
            edges.append(bound)
            merged.append(running)
            running = 0.0
    return Bins("scalar", tuple(edges), (), (*merged, running, float(missing)))


def enum_bins(counts: Mapping[str, float], *, missing: float = 0) -> Bins:
    """Return one bin per value, the most frequent first. Raises ``BadReference``."""
    known = {str(value): count for value, count in counts.items() if value not in (OTHER, MISSING)}
    if not known or sum(known.values()) <= 0:
        raise BadReference("no observations")
    ranked = sorted(known, key=lambda value: (-known[value], value))
    kept = tuple(ranked[:_MAX_VALUES])
    rest = sum(known[value] for value in ranked[_MAX_VALUES:]) + counts.get(OTHER, 0)
    return Bins(
        "enum", (), kept, (*(float(known[v]) for v in kept), float(rest), float(missing + counts.get(MISSING, 0)))
    )


def count(bins: Bins, values: Iterable[float | str | None]) -> Floats:
    """Return the number of values in each bin, an array (bins,)."""
    found = Counter(bins.index(value) for value in values)
    return np.array([found[i] for i in range(len(bins.counts))], dtype=np.float64)


def shares(counts: Sequence[float] | Floats) -> Floats:
    """Return smoothed shares of counts: ``(count + 0.5) / (total + 0.5·B)``."""
    data = np.asarray(counts, dtype=np.float64)
    smoothed: Floats = (data + SMOOTHING) / (data.sum() + SMOOTHING * data.size)
    return smoothed


@dataclass(frozen=True, slots=True)
class Shares:
    """How often each value of a variable came, beside its reference: by bin, in order."""

    bins: tuple[str, ...]
    reference: tuple[float, ...]
    """The reference's share of each bin."""
    size: float
    """The number of the reference's values."""
    counts: tuple[float, ...]
    news: Mapping[str, float] = field(default_factory=dict)
    """Counts of named values that fell into ``other``."""

    @property
    def n(self) -> float:
        """Number of values seen."""
        return sum(self.counts)

    @property
    def moved(self) -> tuple[tuple[str, float], ...]:
        """The bins whose share moved beyond noise, each with the change of its share; the largest change first."""
        if not self.n:
            return ()
        p, q = np.asarray(self.reference), np.asarray(self.counts) / self.n
        noise = SHIFT_SIGMAS * np.sqrt(p * (1 - p) * (1 / self.n + 1 / self.size))
        # Of few values a single one is a large share, smoothed a small one; of an empty bin it is the other way round.
        is_far = (np.abs(q - p) > noise) & (np.abs(shares(self.counts) - p) > noise)
        far = [(name, float(by)) for name, by, is_it in zip(self.bins, q - p, is_far, strict=True) if is_it]
        return tuple(sorted(far, key=lambda one: -abs(one[1])))

    @property
    def new(self) -> dict[str, float]:
        """The share of each value that is not in the reference, among the values seen; the most frequent first."""
        came = sorted(((name, count) for name, count in self.news.items() if count > 0), key=lambda one: -one[1])
        return {name: count / self.n for name, count in came} if self.n else {}

    def named(self, bin_name: str) -> str:
        """Return a bin's name for people: bins of numbers as ranges, ``other`` with the new values."""
        if bin_name == OTHER and self.new:
            names = list(self.new)
            return f"{OTHER} ({', '.join(names[:_MAX_NEW])}{', …' if len(names) > _MAX_NEW else ''})"
        if "+Inf" not in self.bins or bin_name == self.bins[-1]:
            return bin_name
        place = self.bins.index(bin_name)
        below = self.bins[place - 1] if place else ""
        if bin_name == "+Inf":
            return f"above {below}" if below else "any number"
        return f"{below} – {bin_name}" if below else f"up to {bin_name}"


def in_days(days: float) -> str:
    """Return for people in how many days chance alone gives such evidence once."""
    if days < 1:
        return "less than a day"
    return f"{days:,.0f} days" if days < _MAX_DAYS else f"more than {_MAX_DAYS:,} days"


def right_in_words(one: Mapping[str, Any]) -> str:
    """Return for people how often a version is right: ``value``, ``low``, ``high`` (95 % interval) and ``labels``."""
    return (
        f"{one['value']:.1%} right by labels ({one['low']:.1%} to {one['high']:.1%}, {one['labels']:,.0f} "
        f"label{'s' * (one['labels'] != 1)})"
    )


def encode(
    variables: Mapping[str, Bins], *, words: Words | None = None, mean: Mean | None = None, **about: object
) -> str:  # fmt: skip
    """Return the text of a reference file; ``about`` is additional information for people."""
    return json.dumps(
        {
            "format": FORMAT,
            **about,
            "variables": {
                name: {
                    "kind": bins.kind,
                    **({"edges": bins.edges} if bins.kind == "scalar" else {"values": bins.values}),
                    "counts": bins.counts,
                }
                for name, bins in sorted(variables.items())
            },
            **({"words": {"texts": words.texts, "usual": words.usual}} if words is not None else {}),
            **(
                {"mean": {"vectors": mean.vectors, "values": [float(f"{value:.6g}") for value in mean.values]}}
                if mean is not None
                else {}
            ),
        },
        indent=2,
        ensure_ascii=False,
    )


def decode(text: str) -> Reference:
    """Read a reference file. Raises ``BadReference`` with the reason."""
    try:
        content = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise BadReference(f"{FILE} is not JSON: {error}") from error
    if not isinstance(content, dict) or content.get("format") != FORMAT:
        raise BadReference(f'{FILE} must be an object with "format": {FORMAT}')
    variables = content.get("variables")
    if not isinstance(variables, dict):
        raise BadReference(f"{FILE} has no variables")
    found = {}
    for name, item in variables.items():
        try:
            found[str(name)] = _decode_bins(item)
        except (KeyError, TypeError, ValueError) as error:
            raise BadReference(f"{FILE}: variable {name}: {error}") from error
    try:
        words = _decode_words(content["words"]) if "words" in content else None
        if UNUSUAL in found and words is None:
            raise BadReference(f"the variable {UNUSUAL} needs them")
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise BadReference(f"{FILE}: words: {error}") from error
    try:
        mean = _decode_mean(content["mean"]) if "mean" in content else None
        if COSINE in found and mean is None:
            raise BadReference(f"the variable {COSINE} needs it")
        return Reference(found, words, mean)
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise BadReference(f"{FILE}: mean: {error}") from error


def _decode_words(item: Mapping[str, Any]) -> Words:
    words = Words(float(item["texts"]), tuple(str(word) for word in item["usual"]))
    if not 0 < len(words.usual) <= MAX_WORDS or not words.texts > 0:
        raise BadReference(f"1 to {MAX_WORDS} usual words are needed, and the number of texts that they are of")
    return words


def _decode_mean(item: Mapping[str, Any]) -> Mean:
    mean = Mean(float(item["vectors"]), tuple(float(value) for value in item["values"]))
    if not mean.values or not all(math.isfinite(value) for value in mean.values) or not any(mean.values):
        raise BadReference("values must be finite numbers, at least one of them not 0")
    return mean


def _decode_bins(item: Mapping[str, Any]) -> Bins:
    kind = item["kind"]
    counts = tuple(float(c) for c in item["counts"])
    edges = tuple(float(e) for e in item.get("edges", ())) if kind == "scalar" else ()
    values = tuple(str(v) for v in item.get("values", ())) if kind == "enum" else ()
    if kind not in ("scalar", "enum"):
        raise BadReference("kind must be scalar or enum")
    if any(not math.isfinite(number) for number in (*counts, *edges)) or min(counts, default=0) < 0 or sum(counts) <= 0:
        raise BadReference("counts must be finite and at least 0, with a sum above 0")
    if any(a >= b for a, b in pairwise(edges)) or len(set(values)) != len(values):
        raise BadReference("edges must ascend and values must differ")
    if {OTHER, MISSING} & set(values) or max(len(edges), len(values)) > _MAX_VALUES:
        raise BadReference(f"at most {_MAX_VALUES} bins are allowed, and none may be called {OTHER} or {MISSING}")
    bins = Bins(kind, edges, values, counts)
    if len(counts) != len(bins.names):
        raise BadReference(
            f"{len(bins.names)} counts expected (one per bin: {', '.join(bins.names)}), not {len(counts)}"
        )
    if len(set(bins.names)) != len(bins.names):
        raise BadReference("edges must differ within their first six digits")
    return bins


class References:
    """A folder of captured references, ``ENDPOINT.json`` and ``ENDPOINT/VERSION.json``, by endpoint url.

    The reconcile loop calls ``read`` in a thread whenever it reads the serving Task. A file written by ``triton-gateway
    drift capture``, or a changed ConfigMap, is therefore used without a restart.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._seen: dict[str, tuple[int, int]] = {}
        self._found: dict[str, Reference] = {}

    def read(self) -> bool:
        """Read changed files; True if anything changed. Never raises: an unusable file is logged once."""
        seen: dict[str, tuple[int, int]] = {}
        found: dict[str, Reference] = {}
        try:
            files = sorted(self._folder.glob("**/*.json"))
        except OSError:
            files = []
        for file in files:
            url = file.relative_to(self._folder).with_suffix("").as_posix()
            try:
                stat = file.stat()
                seen[url] = (stat.st_mtime_ns, stat.st_size)
                if self._seen.get(url) != seen[url]:
                    found[url] = decode(file.read_text(encoding="utf-8"))
                elif url in self._found:
                    found[url] = self._found[url]
            except (OSError, ValueError) as error:
                _log.warning("reference %s cannot be used: %s", file, error)
        is_new = seen != self._seen
        self._seen, self._found = seen, found
        return is_new

    def of(self, url: str) -> Reference:
        """Return the reference of an endpoint url; empty if there is none."""
        return self._found.get(url, Reference())

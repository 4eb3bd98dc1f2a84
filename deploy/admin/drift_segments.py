"""Splits the requests of a payload log by the value of a key, and compares each segment with the same reference.

Called by ``drift report --by``. The log is read twice: to find the segments, then to count in each. Only counts are
kept in memory. Variables are those that follow from a record without a model: those of texts, the label, its score.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import NormalDist
from typing import Any, Final

from deploy.admin import payload_texts
from deploy.admin.drift_counts import LABEL, OF_TEXT, SCORE, Standing, TextCounts, Verdict, Verdicts
from deploy.admin.payload_texts import Read, Wanted
from deploy.tools.errors import DeployError

MOST: Final = 8
"""Segments that are counted separately; all others count as one."""
OTHERS: Final = "(others)"
"""Name of the segment of all other values."""
NONE: Final = "(none)"
"""Name of the segment of requests without the key."""
_MAX_VALUES: Final = 10_000
"""Most values of a key; more would need too much memory, and no segment would be large."""
_LEAST: Final = 50
"""Values of a variable that a segment needs for a verdict."""
_LEAST_MOVED: Final = 5
"""Values by which a bin must differ to be reported."""
_LEVEL: Final = 0.01
"""Probability that chance alone reports any bin, over all segments and variables of a version."""
_OF_RECORDS: Final = frozenset({"tenant", "caller", "route", "model_id"})
VARIABLES: Final = OF_TEXT | {LABEL, SCORE}
"""Variables that can be counted from a payload log."""
_MAX_CHARS: Final = 80


@dataclass(frozen=True, slots=True)
class Part:
    """One variable in one segment: the version's verdict with the counts of this segment.

    ``moved``: like that of ``Verdict``, but only bins that moved more than chance explains among so many segments.
    """

    segment: str
    requests: int
    verdict: Verdict
    moved: Mapping[str, float]

    def described(self) -> dict[str, Any]:
        """Return it as JSON values."""
        seen = self.verdict
        return {
            "segment": self.segment, "requests": self.requests, "n": seen.n, "counts": seen.counts,
            "psi": seen.psi if seen.n else None, "noise": seen.bound if seen.n else None, "moved": dict(self.moved),
        }  # fmt: skip


Parts = Mapping[tuple[str, str, str], Sequence[Part]]
"""(Endpoint, version, variable) → its segments, the largest first."""


def of_log(log: Path, wanted: Wanted, key: str, found: Verdicts, read: Read) -> Parts:
    """Return the segments of each verdict whose variable a log contains. Raises ``DeployError``."""
    at = {(one.version, one.variable): one for one in found if one.variable in VARIABLES}
    versions = {version for version, _ in at}
    sizes: Counter[str] = Counter()
    for record in payload_texts.records(log, wanted, read):
        sizes[segment_of(record, key)] += 1
        if len(sizes) > _MAX_VALUES:
            raise DeployError(
                f"{key} has more than {_MAX_VALUES:,} values in {log}",
                hint="use a key with few values, for example tenant",
            )
    if not sizes.keys() - {NONE}:
        of = f"no request of {wanted.endpoint} in {log} has {key}"
        raise DeployError(of, hint="--by takes a field of requests, or one of " + ", ".join(sorted(_OF_RECORDS)))
    named = {name for name, _ in sizes.most_common(MOST)}
    counted: dict[tuple[str, str], _Counted] = {}
    for record in payload_texts.records(log, wanted, Read()):
        version = str(record.get("version", ""))
        if version in versions:
            name = segment_of(record, key)
            counted.setdefault((version, name if name in named else OTHERS), _Counted()).see(record)
    for one in counted.values():
        one.texts.flush()
    bins = sum(len(verdict.bins) for verdict in at.values()) * max(1, len(named) + (len(sizes) > len(named)))
    sigmas = NormalDist().inv_cdf(1 - _LEVEL / 2 / max(bins, 1))
    parts: dict[tuple[str, str, str], list[Part]] = {}
    for (version, name), one in sorted(counted.items(), key=lambda item: -item[1].requests):
        for (of, variable), verdict in at.items():
            if of == version and (values := one.values(variable)):
                here = replace(
                    verdict, counts=_in_bins(verdict.bins, values), standing=Standing(), news={}
                )  # fmt: skip
                part = Part(name, one.requests, here, _moved(here, sigmas))
                parts.setdefault((verdict.endpoint, version, variable), []).append(part)
    return parts


def sentences(parts: Parts, key: str) -> Iterator[str]:
    """Return a sentence for each segment of a version: its share of the requests, and the bins that moved."""
    versions: dict[tuple[str, str], dict[str, list[Part]]] = {}
    for (endpoint, version, _), of in parts.items():
        for part in of:
            versions.setdefault((endpoint, version), {}).setdefault(part.segment, []).append(part)
    for (endpoint, version), segments in versions.items():
        total = sum(of[0].requests for of in segments.values())
        for name, of in sorted(segments.items(), key=lambda item: -item[1][0].requests):
            moved = [f"{part.verdict.variable} {changes(part)}" for part in of if part.moved]
            few = max(part.verdict.n for part in of) < _LEAST
            how = "; ".join(moved) or ("too few values to decide" if few else "nothing moved")
            url = f"{endpoint}/{version}" if version else endpoint
            yield f"{key} {name} ({of[0].requests / total:.1%} of {total:,} requests of {url}): {how}"


def changes(part: Part, most: int = 3) -> str:
    """Return the bins that moved in a segment as text, the largest change first."""
    first = sorted(part.moved.items(), key=lambda item: -abs(item[1]))[:most]
    return ", ".join(f"{part.verdict.named(name)} {by:+.1%}" for name, by in first)


def segment_of(record: Mapping[str, Any], key: str) -> str:
    """Return the value of ``key`` in a record: one of its own fields, or of its request (``user.country``)."""
    value: Any = record.get(key) if key in _OF_RECORDS else record.get("request")
    for name in () if key in _OF_RECORDS else key.split("."):
        value = value.get(name) if isinstance(value, Mapping) else None
    if isinstance(value, bool):
        return str(value).lower()
    text = str(value).strip() if isinstance(value, str | int | float) else ""
    return text[:_MAX_CHARS] or NONE


class _Counted:
    """Counts of one segment: its requests, the variables of their texts, labels and scores."""

    def __init__(self) -> None:
        self.requests = 0
        self.texts = TextCounts(OF_TEXT)
        self._labels: Counter[str] = Counter()
        self._scores: Counter[float] = Counter()

    def see(self, record: Mapping[str, Any]) -> None:
        """Count a record."""
        self.requests += 1
        for text in payload_texts.texts_of(record.get("request")):
            self.texts.see(text)
        for result in _results(record.get("answer")):
            self._labels[str(result["label"])] += 1
            if isinstance(result.get("score"), float):
                self._scores[round(result["score"], 4)] += 1

    def values(self, variable: str) -> Mapping[Any, int]:
        """Return how often each value of a variable occurred."""
        if variable == LABEL:
            return self._labels
        return self._scores if variable == SCORE else self.texts.counts[variable]


def _results(answer: object) -> Iterator[Mapping[str, Any]]:
    """Return the result of each text; of a list of all labels, the one with the highest score."""
    if isinstance(answer, Mapping):
        several = answer.get("results", answer.get("predictions"))
        answer = several if isinstance(several, list) else [answer]
    for one in answer if isinstance(answer, list) else ():
        result = one
        if isinstance(one, list):
            scored = [each for each in one if isinstance(each, Mapping) and isinstance(each.get("score"), float)]
            result = max(scored, key=lambda each: float(each["score"]), default=None)
        if isinstance(result, Mapping) and "label" in result:
            yield result


def _in_bins(names: Sequence[str], values: Mapping[Any, int]) -> tuple[float, ...]:
    """Count values into the bins of a reference. The last bin, of missing values, stays 0: a log has none."""
    counts = [0.0] * len(names)
    if "+Inf" in names:
        edges = [float(name) for name in names[:-2]]
        for value, number in values.items():
            counts[bisect_left(edges, float(value))] += number
        return tuple(counts)
    places = {name: place for place, name in enumerate(names[:-2])}
    for value, number in values.items():
        counts[places.get(value, len(names) - 2)] += number
    return tuple(counts)


def _moved(verdict: Verdict, sigmas: float) -> dict[str, float]:
    """Return the bins whose share differs by more than ``sigmas`` of noise and by ``_LEAST_MOVED`` values."""
    if verdict.n < _LEAST:
        return {}
    found = {}
    was = dict(zip(verdict.bins, verdict.reference, strict=True))
    for name, by in verdict.moved:
        p = was[name]
        noise = math.sqrt(p * (1 - p) * (1 / verdict.n + 1 / verdict.reference_size))
        if abs(by) > sigmas * noise and abs(by) * verdict.n >= _LEAST_MOVED:
            found[name] = by
    return found

"""Tells of candidates that would be much faster than the one that is served. Pure, but for reading manifests.

``deploy`` takes ``ort-fp32`` without trying others, and ``optimize`` never takes one beyond tolerance.
"""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

PLAIN: Final = "ort-fp32"
"""The candidate that ``deploy`` takes."""
_MUCH: Final = 1.5
"""Times as fast from which on it is told."""


def lines(values: Mapping[str, Any], bundle: Path) -> Iterator[str]:
    """Yield what to say at the end of a run that has made ``bundle`` with the manifest ``values``."""
    chosen, load = values["chosen"]["candidate"], values["chosen"]["load"]
    for parity in values["parity"]:
        times = ratio(values["speed"], parity["candidate"], chosen, load)
        if times >= _MUCH and parity["excesses"] and not parity["faults"]:
            yield (
                f"{parity['candidate']} is {times:.1f} times as fast as {chosen}, but beyond tolerance "
                f'({parity["excesses"][0]}); --candidate {parity["candidate"]} --accept "REASON" takes it'
            )
    times = ratio(values["speed"], chosen, PLAIN, load)
    if times >= _MUCH:
        yield (
            f"{chosen} is {times:.1f} times as fast as {PLAIN}, which `deploy` takes when it exports a model; to serve "
            f"this one: triton-gateway deploy {bundle}"
        )
    if chosen == PLAIN and len(values["parity"]) == 1:
        yield from _earlier(values, bundle)


def ratio(rows: Sequence[Mapping[str, Any]], name: str, other: str, load: str) -> float:
    """Return how many times as fast ``name`` is as ``other``, by a speed table; 0 if it does not hold both.

    For latency with all threads, for throughput with one.
    """
    threads = {row["threads"] for row in rows}
    wanted = max(threads, default=0) if load == "latency" else min(threads, default=0)
    both = [row["ms"] for row in rows if row["threads"] == wanted and {name, other} <= row["ms"].keys()]
    return math.exp(statistics.fmean(math.log(ms[other] / ms[name]) for ms in both)) if both else 0.0


def _earlier(values: Mapping[str, Any], bundle: Path) -> Iterator[str]:
    """Yield the fastest bundle of this model that an earlier run has made beside ``bundle``, if it is much faster."""
    found = []
    for path in bundle.parent.glob("*/manifest.json"):
        try:
            earlier = json.loads(path.read_text(encoding="utf-8"))
            if earlier["source"]["digest"] == values["source"]["digest"] and earlier["target"] == values["target"]:
                name = earlier["chosen"]["candidate"]
                found.append((ratio(earlier["speed"], name, PLAIN, values["chosen"]["load"]), name, path.parent))
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            continue  # not ours, or of another time
    times, name, folder = max(found, default=(0.0, "", bundle))
    if times >= _MUCH:
        yield (
            f"{name} was {times:.1f} times as fast as {PLAIN} in an earlier run for this model; to serve that one: "
            f"triton-gateway deploy {folder}"
        )

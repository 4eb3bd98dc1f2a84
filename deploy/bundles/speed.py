"""The speed table: every candidate on this machine, by batch and length, relative to PyTorch.

Measured with the threads of the load: latency is one text at a time with all cores, throughput is every batch with one
thread, because instances run side by side. Engines take turns within a round, so other work on the machine affects all
of them alike. A cell is the best of its rounds, since other work can only add to it.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

import numpy as np

Call = Callable[[], object]
Load = Literal["latency", "throughput"]

ORIGINAL: Final = "pytorch"
ROUNDS: Final = 3
_LENGTHS: Final = (16, 64, 128, 256, 512)
_BATCHES: Final = (1, 8, 32)
_LEAST_CALLS: Final = 2
_SLICE_S: Final = 0.12
_MAX_TOKENS: Final = 2048
"""Most tokens in a cell. Larger cells take seconds in PyTorch and give no further information."""


@dataclass(frozen=True, slots=True)
class Cell:
    """One point of the grid."""

    batch: int
    length: int


@dataclass(frozen=True, slots=True)
class Timing:
    """Milliseconds per call of every engine in one cell."""

    cell: Cell
    ms: Mapping[str, float]

    def ratio(self, name: str) -> float:
        """How many times as fast as PyTorch."""
        return self.ms[ORIGINAL] / self.ms[name]


def grid(max_length: int, load: Load, *, is_quick: bool = False) -> list[Cell]:
    """Return the cells to measure for a load: lengths up to the model's own longest."""
    lengths = (16, 128) if is_quick else _LENGTHS
    batches = (1,) if is_quick or load == "latency" else _BATCHES
    chosen = sorted({n for n in lengths if n <= max_length} or {max_length})
    most = max(_MAX_TOKENS, max_length)
    return [Cell(batch, length) for batch in batches for length in chosen if batch * length <= most]


def of_size(feeds: Mapping[str, Any], cell: Cell) -> dict[str, Any]:
    """Return ``feeds``, one text's tokens, as a batch of equal rows of the cell's length.

    The first and last token stay at the ends (BART reads where a text ends); the tokens between them are repeated.
    """

    def row(tokens: Any) -> Any:
        inner = tokens[1:-1] if len(tokens) > 2 else tokens
        return np.concatenate([tokens[:1], np.resize(inner, max(0, cell.length - 2)), tokens[-1:]])[: cell.length]

    return {
        name: np.ones((cell.batch, cell.length), value.dtype)
        if name == "attention_mask"
        else np.tile(row(value[0]), (cell.batch, 1))
        for name, value in feeds.items()
    }


def measure(
    cells: Sequence[Cell], engines: Mapping[str, Callable[[Cell], Call]], say: Callable[[str], None], *,
    clock: Callable[[], float] = time.perf_counter, rounds: int = ROUNDS,
) -> list[Timing]:  # fmt: skip
    """Measure ``cells``. ``engines`` return each engine's call for a cell, by name; ``ORIGINAL`` is one of them."""
    found: list[Timing] = []
    for number, cell in enumerate(cells, 1):
        calls = {name: prepare(cell) for name, prepare in engines.items()}
        timing = Timing(cell, {name: min(times) for name, times in _rounds(calls, clock, rounds).items()})
        found.append(timing)
        best = min((n for n in timing.ms if n != ORIGINAL), key=lambda n: timing.ms[n], default=ORIGINAL)
        say(
            f"speed {number}/{len(cells)}: batch {cell.batch} × {cell.length} tokens: "
            f"PyTorch {timing.ms[ORIGINAL]:.1f} ms, {best} ×{timing.ratio(best):.1f}"
        )
    return found


def _rounds(calls: Mapping[str, Call], clock: Callable[[], float], rounds: int) -> dict[str, list[float]]:
    times: dict[str, list[float]] = {name: [] for name in calls}
    for call in calls.values():
        call()  # the first call compiles shapes and allocates memory
    for _ in range(rounds):
        for name, call in calls.items():
            began, done = clock(), 0
            while done < _LEAST_CALLS or clock() - began < _SLICE_S:
                call()
                done += 1
            times[name].append((clock() - began) / done * 1000)
    return times


def score(timings: Sequence[Timing], name: str) -> float:
    """Return how many times as fast as PyTorch ``name`` is: the geometric mean over the cells; 0 if not measured."""
    ratios = [t.ratio(name) for t in timings if name in t.ms]
    return math.exp(statistics.fmean(math.log(r) for r in ratios)) if ratios else 0.0


def best_batch(timings: Sequence[Timing], name: str, *, length: int = 64) -> int:
    """Return the smallest batch with at least 90 % of the highest rows per second, at about ``length`` tokens."""
    near = min({t.cell.length for t in timings}, key=lambda n: abs(n - length))
    rates = {t.cell.batch: t.cell.batch / t.ms[name] for t in timings if t.cell.length == near and name in t.ms}
    return min(batch for batch, rate in rates.items() if rate >= 0.9 * max(rates.values()))


def as_rows(timings: Sequence[Timing]) -> list[dict[str, Any]]:
    """Return the table as plain values."""
    return [{"batch": t.cell.batch, "length": t.cell.length, "ms": dict(t.ms)} for t in timings]

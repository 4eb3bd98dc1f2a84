"""The speed table: every candidate on this machine, by batch, length and threads, relative to PyTorch.

Engines take turns within a round, so other load on the machine affects all of them alike. A cell is the best of its
rounds, since other load can only add to it.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Final, Literal

import numpy as np

Call = Callable[[], object]
Load = Literal["latency", "throughput"]

ORIGINAL: Final = "pytorch"
BATCHES: Final = (1, 8, 32)
LENGTHS: Final = (16, 64, 128, 256, 512)
ROUNDS: Final = 3
_LEAST_CALLS: Final = 2
_SLICE_S: Final = 0.12
_MAX_TOKENS: Final = 2048
"""Most tokens in a cell. Larger cells take seconds in PyTorch and give no further information."""


@dataclass(frozen=True, slots=True)
class Cell:
    """One point of the grid."""

    batch: int
    length: int
    threads: int


@dataclass(frozen=True, slots=True)
class Timing:
    """Milliseconds per call of every engine in one cell."""

    cell: Cell
    ms: Mapping[str, float]

    def ratio(self, name: str) -> float:
        """How many times as fast as PyTorch."""
        return self.ms[ORIGINAL] / self.ms[name]


def grid(max_length: int, threads: Iterable[int], *, lengths: Sequence[int] = LENGTHS,
         batches: Sequence[int] = BATCHES) -> list[Cell]:  # fmt: skip
    """Return the cells to measure: lengths up to the model's own longest."""
    chosen = sorted({n for n in lengths if n <= max_length} or {max_length})
    return [
        Cell(batch, length, count)
        for count in sorted(set(threads))
        for batch in batches
        for length in chosen
        if batch * length <= max(_MAX_TOKENS, max_length)
    ]


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
    cells: Sequence[Cell], open_engines: Callable[[int], Mapping[str, Callable[[Cell], Call]]],
    say: Callable[[str], None], *, clock: Callable[[], float] = time.perf_counter, rounds: int = ROUNDS,
) -> list[Timing]:  # fmt: skip
    """Measure ``cells``. ``open_engines`` returns, for a number of threads, each engine's call for a cell."""
    opened: tuple[int, Mapping[str, Callable[[Cell], Call]]] | None = None
    found: list[Timing] = []
    for number, cell in enumerate(cells, 1):
        if opened is None or opened[0] != cell.threads:
            opened = cell.threads, open_engines(cell.threads)
        calls = {name: prepare(cell) for name, prepare in opened[1].items()}
        timing = Timing(cell, {name: min(times) for name, times in _rounds(calls, clock, rounds).items()})
        found.append(timing)
        best = min((n for n in timing.ms if n != ORIGINAL), key=lambda n: timing.ms[n], default=ORIGINAL)
        say(
            f"speed {number}/{len(cells)}: batch {cell.batch} × {cell.length} tokens, {cell.threads} thread(s): "
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


def score(timings: Sequence[Timing], name: str, load: Load) -> float:
    """Return how many times as fast as PyTorch ``name`` is for a load: the geometric mean over its cells.

    Latency: one text at a time with all threads. Throughput: all batches with one thread, because instances run side by
    side.
    """
    chosen = _cells_of(timings, load)
    ratios = [t.ratio(name) for t in chosen if name in t.ms]
    return math.exp(statistics.fmean(math.log(r) for r in ratios)) if ratios else 0.0


def best_batch(timings: Sequence[Timing], name: str, *, length: int = 64) -> int:
    """Return the smallest batch with at least 90 % of the highest rows per second, at about ``length`` tokens."""
    one = min(t.cell.threads for t in timings)
    near = min({t.cell.length for t in timings}, key=lambda n: abs(n - length))
    rates = {
        t.cell.batch: t.cell.batch / t.ms[name]
        for t in timings
        if t.cell.threads == one and t.cell.length == near and name in t.ms
    }
    return min(batch for batch, rate in rates.items() if rate >= 0.9 * max(rates.values()))


def side_by_side(instances: Sequence[Call], seconds: float = 1.5) -> float:
    """Return the calls per second of all ``instances`` running at once, each in its own thread."""

    def work(call: Call) -> int:
        call()
        until, done = time.perf_counter() + seconds, 0
        while time.perf_counter() < until:
            call()
            done += 1
        return done

    with ThreadPoolExecutor(len(instances)) as pool:
        return sum(pool.map(work, instances)) / seconds


def shapes(count: int, cores: int) -> list[tuple[int, int]]:
    """Return the (instances, threads) to try on ``cores`` cores, with at most ``count`` instances."""
    found = {(min(count, cores), max(1, cores // min(count, cores))), (1, cores)}
    if cores >= 4:
        found.add((cores // 2, 2) if cores // 2 <= count else (count, cores // count))
    return sorted(found)


def best_shape(
    most: int, cores: int, open_call: Callable[[int], Call], say: Callable[[str], None],
    progress: Callable[[str], None],
) -> tuple[int, int]:  # fmt: skip
    """Return the instances and threads with the highest total rate, with at most ``most`` instances.

    ``open_call`` opens an instance with a number of threads.
    """
    rates: dict[tuple[int, int], float] = {}
    for instances, threads in shapes(most, cores):
        progress(f"{instances} instance(s) of {threads} thread(s)")
        rates[instances, threads] = side_by_side([open_call(threads) for _ in range(instances)])
    say("instances × threads: " + ", ".join(f"{i} × {t}: {rate:.0f}/s" for (i, t), rate in rates.items()))
    return max(rates, key=lambda shape: rates[shape])


def _cells_of(timings: Sequence[Timing], load: Load) -> list[Timing]:
    threads = {t.cell.threads for t in timings}
    wanted = max(threads) if load == "latency" else min(threads)
    return [t for t in timings if t.cell.threads == wanted and (load == "throughput" or t.cell.batch == 1)]


def as_rows(timings: Sequence[Timing]) -> list[dict[str, Any]]:
    """Return the table as plain values."""
    return [
        {"batch": t.cell.batch, "length": t.cell.length, "threads": t.cell.threads, "ms": dict(t.ms)} for t in timings
    ]

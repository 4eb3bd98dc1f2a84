"""Measures how fast text is generated: milliseconds to the first token and per further token, next to ``transformers``.

By prompt length and number of threads. As in ``deploy/bundles/speed.py``, engines take turns within a round, and a cell
is the best of its rounds. Each cell is reported when it is finished.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from deploy.bundles.speed import ORIGINAL, Load

Pacer = Callable[[Sequence[int], int], tuple[float, float]]
"""Continues a prompt by a number of tokens; returns milliseconds to the first token, and per further token."""

PROMPTS: Final = (16, 128, 512)
QUICK: Final = (16, 128)
ROUNDS: Final = 3
TOKENS: Final = 16


@dataclass(frozen=True, slots=True)
class Pace:
    """One prompt length and number of threads; milliseconds by engine."""

    threads: int
    prompt: int
    first_ms: Mapping[str, float]
    token_ms: Mapping[str, float]

    def ratios(self, name: str) -> tuple[float, float]:
        """How many times as fast as PyTorch: for the first token, and for a further token."""
        return self.first_ms[ORIGINAL] / self.first_ms[name], self.token_ms[ORIGINAL] / self.token_ms[name]

    def tokens_per_second(self, name: str) -> float:
        """Tokens per second after the first."""
        return 1000 / self.token_ms[name]


def measure(
    prompts: Sequence[Sequence[int]], threads: Iterable[int], open_engines: Callable[[int], Mapping[str, Pacer]],
    say: Callable[[str], None], *, tokens: int = TOKENS, rounds: int = ROUNDS,
) -> list[Pace]:  # fmt: skip
    """Measure every prompt with every number of threads."""
    found: list[Pace] = []
    for count in sorted(set(threads)):
        engines = open_engines(count)
        for prompt in prompts:
            measured = _cell(engines, prompt, tokens, rounds)
            first, each = ({name: value[part] for name, value in measured.items()} for part in (0, 1))
            pace = Pace(count, len(prompt), first, each)
            found.append(pace)
            others = [name for name in first if name != ORIGINAL]
            best = min(others, key=lambda name: pace.token_ms[name], default=ORIGINAL)
            say(
                f"speed: prompt of {len(prompt)} tokens, {count} thread(s): PyTorch "
                f"{pace.tokens_per_second(ORIGINAL):.1f} tokens/s, {best} ×{pace.ratios(best)[1]:.1f}"
            )
    return found


def _cell(engines: Mapping[str, Pacer], prompt: Sequence[int], tokens: int, rounds: int) -> dict[str, list[float]]:
    for pacer in engines.values():
        pacer(prompt, 2)  # the first call allocates memory
    times: dict[str, list[tuple[float, float]]] = {name: [] for name in engines}
    for _ in range(rounds):
        for name, pacer in engines.items():
            times[name].append(pacer(prompt, tokens))
    return {name: [min(t[part] for t in taken) for part in (0, 1)] for name, taken in times.items()}


def score(paces: Sequence[Pace], name: str, load: Load) -> float:
    """Return how many times as fast as PyTorch ``name`` is: the geometric mean over first and further tokens.

    For latency with all threads, for throughput with one, because texts then run side by side.
    """
    threads = {pace.threads for pace in paces}
    wanted = max(threads) if load == "latency" else min(threads)
    ratios = [ratio for pace in paces if pace.threads == wanted for ratio in pace.ratios(name)]
    return math.exp(statistics.fmean(map(math.log, ratios))) if ratios else 0.0


def as_rows(paces: Sequence[Pace]) -> list[dict[str, Any]]:
    """Return the table as plain values: two rows per cell, of the first token and of a token after it."""
    return [
        {"threads": p.threads, "batch": 1, "length": p.prompt, "token": what, "ms": dict(ms)}
        for p in paces
        for what, ms in (("first", p.first_ms), ("each after it", p.token_ms))
    ]

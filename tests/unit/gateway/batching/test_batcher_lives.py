"""The life of every entry, in simulated time: it ends exactly once, whatever calls and callers do."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.batching.batcher import Batcher
from gateway.batching.entries import BatchLimits, Entry
from gateway.errors import BackendRefused, BackendUnavailable, DeadlineExceeded, GatewayError
from tests.simulated import SimulatedLoop, begin, simulate

LIMITS = BatchLimits(max_rows=6, max_padded_tokens=200, max_in_flight=2)


@dataclass(eq=False)
class Asked:
    """One request: its arrival, size and timeout, when it leaves at the latest, and whether it makes its call fail."""

    at: float
    n_tokens: int
    count: int
    kind: int
    timeout: float
    leaves_after: float
    is_poison: bool


ASKED = st.builds(
    Asked, at=st.floats(0, 1), n_tokens=st.integers(1, 60), count=st.integers(1, 8), kind=st.integers(0, 1),
    timeout=st.floats(0.005, 2), leaves_after=st.floats(0, 0.5) | st.just(2), is_poison=st.booleans(),
)  # fmt: skip
FATES = st.tuples(
    st.floats(0, 0.3), st.sampled_from(["well"] * 4 + ["lost", "cancelled", "bug", "short", "never"])
)  # fmt: skip
"""How long a call takes, and how it ends."""


@settings(deadline=None, max_examples=150)
@given(st.lists(ASKED, min_size=1, max_size=25), st.lists(FATES, min_size=1, max_size=12), st.integers(1, 2))
def test_every_entry_ends_once_or_is_abandoned(
    asked: list[Asked], fates: list[tuple[float, str]], replicas: int
) -> None:
    """It ends with its own output or an error. An abandoned entry, as at its request's deadline, gets no outcome."""

    async def main(loop: SimulatedLoop) -> None:
        under_way = calls = 0
        told: list[tuple[Asked, Any, Exception | None]] = []
        left: set[int] = set()

        async def run(rows: Sequence[Asked], timeout: float) -> list[Any]:
            nonlocal under_way, calls
            seconds, ends = fates[calls % len(fates)]
            calls += 1
            under_way += 1
            assert under_way <= LIMITS.max_in_flight * replicas
            assert timeout > 0
            assert len({row.kind for row in rows}) == 1
            if len(rows) > 1:
                count = sum(row.count for row in rows)
                assert count <= LIMITS.max_rows
                assert count * max(row.n_tokens for row in rows) <= LIMITS.max_padded_tokens
            try:
                await asyncio.sleep(1e6 if ends == "never" else seconds)
            finally:
                under_way -= 1
            if any(row.is_poison for row in rows):
                raise BackendRefused("one of them is at fault")
            match ends:
                case "lost":
                    raise BackendUnavailable("gone")
                case "cancelled":
                    raise asyncio.CancelledError
                case "bug":
                    raise ZeroDivisionError
                case "short":
                    return list(rows)[1:]
            return list(rows)

        batcher: Batcher[Asked] = Batcher(
            run, limits=LIMITS, servers=SimpleNamespace(replicas=replicas), share=lambda found, _: found,
            clock=loop.time,
        )  # fmt: skip

        def come(one: Asked) -> None:
            def on_done(_entry: Entry[Asked], output: Any, error: Exception | None) -> None:
                told.append((one, output, error))

            entry = begin(batcher, [one], loop.time() + one.timeout, on_done, count=one.count, kind=one.kind)
            loop.call_later(min(one.leaves_after, one.timeout), leave, one, entry)

        def leave(one: Asked, entry: Entry[Asked]) -> None:
            if not entry.is_over:
                left.add(id(one))
                waited, rows = entry.call is None, batcher.queued_rows
                batcher.abandon(entry)
                assert batcher.queued_rows in ({rows, rows - one.count} if waited else {rows})
                assert batcher.queued_rows < rows or not waited or one.is_poison

        for one in asked:
            loop.call_at(one.at, come, one)
        await asyncio.sleep(4)
        times = Counter(id(one) for one, *_ in told)
        assert times == Counter(id(one) for one in asked if id(one) not in left)
        for one, output, error in told:
            assert (output is one) == (error is None)
            if one.is_poison:
                assert isinstance(error, GatewayError | ZeroDivisionError)
            if isinstance(error, DeadlineExceeded):
                assert output is None
        assert under_way == 0
        assert batcher.queued_rows == 0
        async with asyncio.timeout(1):
            await batcher.close()

    simulate(main)

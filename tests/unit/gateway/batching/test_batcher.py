"""How requests share calls: which entries are in a call, and which outputs or errors each of them gets."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.batching.batcher import Batcher
from gateway.batching.entries import BatchLimits, Entry, cut, merge, split
from gateway.errors import BackendGarbage, BackendRefused, BackendUnavailable, ModelNotReady
from gateway.prices import Prices
from tests.simulated import ONE_SERVER, begin, learned
from tests.waiting import LIMIT_S, soon


@dataclass
class Row:
    n_tokens: int
    value: int = 0


class Calls:
    """A backend call that can be held open, and that records its batches; ``fails`` returns the error of a batch."""

    def __init__(self, fails: Callable[[list[int]], BaseException | None] = lambda _: None) -> None:
        self.batches: list[list[int]] = []
        self.gate = asyncio.Event()
        self.gate.set()
        self.fails = fails
        self.cancelled: list[list[int]] = []

    async def __call__(self, rows: Sequence[Row], timeout: float) -> dict[str, Any]:
        values = [row.value for row in rows]
        self.batches.append(values)
        try:
            await self.gate.wait()
        except asyncio.CancelledError:
            self.cancelled.append(values)
            raise
        if (error := self.fails(values)) is not None:
            raise error
        return {"y": np.array([[value * 10] for value in values])}


def make(calls: Calls, **limits: Any) -> Batcher[Row]:
    """A batcher over ``calls``."""
    return Batcher(calls, limits=BatchLimits(**limits), servers=ONE_SERVER)


async def ask(batcher: Batcher[Row], *values: int, tokens: int = 4, timeout: float = LIMIT_S) -> list[int]:
    """Submit one request and return its rows' answers."""
    deadline = asyncio.get_running_loop().time() + timeout
    outputs, _, _ = await batcher.submit([Row(tokens, v) for v in values], deadline)
    return [int(v) for v in outputs["y"][:, 0]]


async def test_a_request_of_many_calls_takes_turns_with_the_others() -> None:
    """Whoever comes after it waits for the calls in flight, not for all that it still has to send."""
    calls = Calls()
    calls.gate.clear()
    batcher = make(calls, max_rows=2, max_in_flight=2)
    large = asyncio.create_task(ask(batcher, *range(20)))
    while not calls.batches:
        await asyncio.sleep(0)
    small = asyncio.create_task(ask(batcher, 99))
    await asyncio.sleep(0)
    calls.gate.set()
    assert [[990], [value * 10 for value in range(20)]] == await asyncio.gather(small, large)
    assert next(number for number, batch in enumerate(calls.batches) if 99 in batch) <= 3


@pytest.mark.parametrize(
    ("values", "fails", "failed", "calls"),
    [
        (range(8), lambda batch: BackendRefused("poisoned") if 3 in batch else None, {3: BackendRefused}, 7),
        ([1, 2], lambda _: BackendUnavailable("gone"), {1: BackendUnavailable, 2: BackendUnavailable}, 1),
        ([1, 2], lambda _: KeyError("a bug"), {1: KeyError, 2: KeyError}, 1),
        (
            [1, 2, 3, 4],  # as a transport that is being closed does
            lambda batch: BackendRefused("no") if len(batch) == 4 else asyncio.CancelledError() if 1 in batch else None,
            {1: ModelNotReady, 2: ModelNotReady}, 3,
        ),
    ],
    ids=["guilty row", "outage", "bug", "half cancelled"],
)  # fmt: skip
async def test_a_failed_call_fails_who_may_be_guilty_and_no_later_one(
    values: Sequence[int], fails: Any, failed: dict[int, type], calls: int
) -> None:
    """A refused call is halved until only the guilty request fails. Others are not: more calls would burden a server in
    trouble. Each half is a call of its own.
    """
    made = Calls(fails)
    batcher = make(made)
    answers = await asyncio.gather(*(ask(batcher, value) for value in values), return_exceptions=True)
    assert failed == {value: type(one) for value, one in zip(values, answers, strict=True) if not isinstance(one, list)}
    assert {value: [value * 10] for value in values if value not in failed} == {
        value: one for value, one in zip(values, answers, strict=True) if isinstance(one, list)
    }
    assert calls == len(made.batches)
    made.fails = lambda _: None
    assert [90] == await ask(batcher, 9)


async def test_an_error_in_counting_or_in_a_callback_does_not_fail_other_requests() -> None:
    """The entries of a call get their outcomes one after another."""
    told: list[int] = []

    def fails(*_: object) -> None:
        raise ValueError("no such label, or the head made nothing of it")

    batcher = Batcher(Calls(), limits=BatchLimits(), on_batch=fails, servers=ONE_SERVER)
    for on_done in (fails, lambda _entry, outputs, _error: told.append(int(outputs["y"][0, 0]))):
        begin(batcher, [Row(4, 2)], asyncio.get_running_loop().time() + LIMIT_S, on_done)
    await soon(lambda: told)
    assert [20] == told


async def test_requests_that_wait_share_the_next_call_and_one_that_left_is_not_sent() -> None:
    """While all calls are busy; it costs the backend nothing. Those of one tick share one, too."""
    calls = Calls()
    calls.gate.clear()
    batcher = make(calls, max_in_flight=1)
    first = asyncio.gather(ask(batcher, 1), ask(batcher, 2, 3))
    await soon(lambda: calls.batches)
    gone, *stay = (asyncio.create_task(ask(batcher, value)) for value in (4, 5, 6))
    await soon(lambda: batcher.queued_rows == 3)
    gone.cancel()
    await asyncio.sleep(0)
    calls.gate.set()
    assert [[[10], [20, 30]], [50], [60]] == await asyncio.gather(first, *stay)
    assert [[1, 2, 3], [5, 6]] == calls.batches


async def test_when_one_call_of_a_split_request_fails_its_other_calls_are_cancelled() -> None:
    """One call fails, one runs and the others are queued: afterwards nothing runs and nothing is queued."""
    calls = Calls()
    held = Calls()
    held.gate.clear()

    async def run(rows: Sequence[Row], timeout: float) -> dict[str, Any]:
        if calls.batches:
            return await held(rows, timeout)
        await calls(rows, timeout)
        await asyncio.sleep(0.01)
        raise BackendUnavailable("gone")

    batcher = Batcher(run, limits=BatchLimits(max_rows=2, max_in_flight=2), servers=ONE_SERVER)
    with pytest.raises(BackendUnavailable):
        await ask(batcher, *range(8))
    assert 0 == batcher.queued_rows
    await soon(lambda: held.batches == held.cancelled)
    assert held.batches
    async with asyncio.timeout(LIMIT_S):
        await batcher.close()


async def test_closing_refuses_queued_requests_and_waits_for_running_calls_and_their_halves() -> None:
    """No caller is left without an outcome, also of a call that is refused during the closing."""
    calls = Calls(lambda batch: BackendRefused("poisoned") if 2 in batch else None)
    calls.gate.clear()
    batcher = make(calls, max_in_flight=1)
    one, two = (asyncio.create_task(ask(batcher, value)) for value in (1, 2))
    await soon(lambda: calls.batches)
    waiting = asyncio.create_task(ask(batcher, 3))
    await soon(lambda: batcher.queued_rows)
    closing = asyncio.create_task(batcher.close())
    with pytest.raises(ModelNotReady):
        await waiting
    assert not batcher.queued_rows
    calls.gate.set()
    assert [10] == await one
    with pytest.raises(BackendRefused):
        await two
    await closing


def _entry(lengths: list[int]) -> Entry[Row]:
    return Entry([Row(n) for n in lengths], 0.0)


_LENGTHS = st.lists(st.integers(1, 512), min_size=1, max_size=6)


_FIXED, _PADDED, _BOTH = (
    learned(*costs, lengths=(4, 100, 500), calls=200) for costs in ((4e-3, 5e-5, 0), (0, 0, 1e-5), (2e-3, 2e-5, 5e-6))
)


@settings(deadline=None, max_examples=100)
@given(
    st.lists(_LENGTHS, min_size=1, max_size=20), st.integers(1, 32), st.integers(1, 4096),
    st.sampled_from([_FIXED, _PADDED, _BOTH, Prices()]),
)  # fmt: skip
def test_cut_includes_the_oldest_entry_and_keeps_both_limits(
    lengths: list[list[int]], rows: int, tokens: int, prices: Prices
) -> None:
    """Only the oldest entry alone may exceed a limit."""
    limits = BatchLimits(rows, tokens)
    waiting = [_entry(item) for item in lengths]
    chosen = cut(waiting, limits, prices)
    assert chosen[0] is waiting[0]
    assert len({id(e) for e in chosen}) == len(chosen)
    if len(chosen) > 1:
        n = sum(len(e.rows) for e in chosen)
        assert n <= rows
        assert n * max(e.longest for e in chosen) <= tokens


@pytest.mark.parametrize(
    ("lengths", "limits", "prices", "chosen"),
    [
        ([200, 8] * 10, BatchLimits(), _FIXED, range(20)),  # padding costs nothing
        ([200, 8] * 10, BatchLimits(), _PADDED, range(0, 20, 2)),
        ([60] + [10] * 6, BatchLimits(), _BOTH, range(7)),  # a second call costs as much as 400 padded tokens
        ([60] + [10] * 12, BatchLimits(), _BOTH, [0]), ([10] + [60] * 12, BatchLimits(), _BOTH, range(13)),
        ([10] * 9, BatchLimits(8, 80), _FIXED, range(8)), ([10] * 9, BatchLimits(9, 80), _FIXED, range(8)),
        ([30, 30, 31, 90, 90] * 8, BatchLimits(), _PADDED, [i for i in range(40) if i % 5 < 2]),
    ],
)  # fmt: skip
def test_lengths_are_cut_where_it_saves_more_than_a_call(
    lengths: list[int], limits: BatchLimits, prices: Prices, chosen: Sequence[int]
) -> None:
    """A call is filled up to its limits."""
    waiting = [_entry([length]) for length in lengths]
    assert [waiting[i] for i in chosen] == cut(waiting, limits, prices)


@settings(deadline=None)
@given(st.lists(st.integers(1, 512), min_size=1, max_size=80), st.integers(1, 32), st.integers(1, 4096))
def test_split_puts_every_row_into_one_group_within_the_limits(lengths: list[int], rows: int, tokens: int) -> None:
    """A group exceeds the token limit only if it is a single row."""
    groups = split(lengths, BatchLimits(rows, tokens))
    assert sorted(i for group in groups for i in group) == list(range(len(lengths)))
    for group in groups:
        assert len(group) <= rows
        assert len(group) == 1 or len(group) * max(lengths[i] for i in group) <= tokens


@pytest.mark.parametrize("side", ["left", "right"])
def test_merge_pads_shorter_groups_on_the_padding_side(side: Any) -> None:
    """Token-level outputs of different lengths are joined into one array, in the order of the rows."""
    long, short = {"h": np.ones((1, 3, 2))}, {"h": np.full((2, 1, 2), 2.0)}
    merged = merge([long, short], [[1], [0, 2]], side)["h"]
    assert (3, 3, 2) == merged.shape
    at = 0 if side == "right" else 2
    assert [2.0, 1.0, 2.0] == [merged[i, at, 0] for i in range(3)]
    assert 0.0 == merged[0, 2 - at, 0]
    with pytest.raises(BackendGarbage):
        merge([long, {"h": np.ones((2, 1))}], [[1], [0, 2]], side)


@settings(deadline=None, max_examples=30)
@given(st.lists(st.lists(st.integers(1, 64), min_size=1, max_size=5), min_size=1, max_size=12), st.integers(1, 8))
def test_every_caller_gets_exactly_its_own_rows(requests: list[list[int]], rows: int) -> None:
    """Whatever sizes of requests arrive together (MLServer#1306)."""

    async def scenario() -> None:
        calls = Calls()
        batcher = make(calls, max_rows=rows, max_in_flight=2)
        loop = asyncio.get_running_loop()
        number = iter(range(10_000))
        plans = [[(next(number), n) for n in lengths] for lengths in requests]

        async def one(plan: list[tuple[int, int]]) -> list[int]:
            outputs, _, _ = await batcher.submit([Row(n, v) for v, n in plan], loop.time() + LIMIT_S)
            return [int(v) for v in outputs["y"][:, 0]]

        answers = await asyncio.gather(*(one(plan) for plan in plans))
        assert [[v * 10 for v, _ in plan] for plan in plans] == answers
        assert max(map(len, calls.batches)) <= rows

    asyncio.run(scenario())


async def test_a_call_is_cancelled_when_all_of_its_callers_have_left() -> None:
    """A call with another caller goes on."""
    calls = Calls()
    calls.gate.clear()
    batcher = make(calls, max_in_flight=2)
    pair = [asyncio.create_task(ask(batcher, v)) for v in (1, 2)]
    await soon(lambda: calls.batches)
    alone = asyncio.create_task(ask(batcher, 3))
    await soon(lambda: len(calls.batches) == 2)
    pair[0].cancel()
    alone.cancel()
    await soon(lambda: calls.cancelled)
    assert [[3]] == calls.cancelled
    calls.gate.set()
    assert [20] == await pair[1]


async def test_a_call_leaves_at_once_for_an_idle_server_and_each_server_has_two_at_most() -> None:
    """Three servers with two calls each: three calls leave at once, three when the first are overdue, no seventh."""
    calls = Calls()
    calls.gate.clear()

    batcher = Batcher(calls, limits=BatchLimits(max_in_flight=2), servers=SimpleNamespace(replicas=3))
    asked = []
    for value in range(7):
        asked.append(asyncio.create_task(ask(batcher, value)))
        await soon(lambda: (min(len(asked), 6), len(asked) // 7) == (len(calls.batches), batcher.queued_rows))
    assert [[value] for value in range(6)] == calls.batches
    calls.gate.set()
    assert [[value * 10] for value in range(7)] == await asyncio.gather(*asked)


async def test_a_call_that_nobody_waits_for_before_it_begins_ends_at_once() -> None:
    """Its task was made but has not run yet: the call ends nevertheless, and the next one leaves."""
    calls = Calls()
    calls.gate.clear()
    batcher = make(calls, max_in_flight=1)
    loop = asyncio.get_running_loop()
    left = begin(batcher, [Row(4, 1)], loop.time() + LIMIT_S, lambda *_: None)
    loop.call_soon(batcher.abandon, left)  # between the flush and the first step of the call's task
    await soon(lambda: batcher.is_idle)
    calls.gate.set()
    assert [20] == await ask(batcher, 2)

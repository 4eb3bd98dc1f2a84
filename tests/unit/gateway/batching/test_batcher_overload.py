"""Refusals of a batcher, for deadlines that cannot be met and for too much work; in simulated time."""

from __future__ import annotations

import asyncio
import inspect
import random
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

import pytest

from gateway.batching.batcher import Batcher
from gateway.batching.entries import BatchLimits, Entry
from gateway.batching.pressure import Pressure
from gateway.errors import BackendRefused, DeadlineExceeded, Overloaded
from gateway.trace import BATCH, CLASSES, CRITICAL, DEFAULT, Flow
from tests.simulated import ONE_SERVER, Price, Row, Server, SimulatedLoop, begin, simulate


def simulated(story: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """Make a test of a coroutine whose first argument is the loop."""

    def test(**named: Any) -> None:
        simulate(lambda loop: story(loop, **named))

    test.__name__, test.__doc__, test.__module__ = story.__name__, story.__doc__, story.__module__
    signature = inspect.signature(story)
    test.__signature__ = signature.replace(parameters=[*signature.parameters.values()][1:])  # type: ignore[attr-defined]
    return test


PRICE = Price("a tenth of a second each", 0.1, 1e-4, 0.0, noise=0.0)
ROWS = 4


class Stack:
    """A batcher over a server of ``PRICE`` whose calls have ``ROWS`` rows; records when and how requests ended."""

    def __init__(self, loop: SimulatedLoop, pressure: Pressure | None = None) -> None:
        self.loop = loop
        limits = BatchLimits(max_rows=ROWS, pressure=pressure or Pressure("off"))
        self.server = Server(loop, PRICE, random.Random(1))
        self.batcher: Batcher[Row] = Batcher(self.run, limits=limits, clock=loop.time, servers=ONE_SERVER)
        self.ended: dict[str, tuple[float, Exception | None]] = {}
        self.timeouts: list[float] = []
        self.failures = 0
        """So many of the next calls fail for a reason of one of their rows."""

    async def run(self, rows: Sequence[Row], timeout: float) -> Any:
        """One call."""
        self.timeouts.append(timeout)
        if self.failures:
            self.failures -= 1
            raise BackendRefused("one of them is bad")
        return await self.server(rows, timeout)

    def ask(self, name: str, within: float = 60.0, rank: int = DEFAULT) -> None:
        """Send one request; a refusal ends it as well."""

        def told(_entry: Entry[Row], _outputs: Any, error: Exception | None) -> None:
            self.ended[name] = self.loop.time(), error

        try:
            begin(self.batcher, [Row(4)], self.loop.time() + within, told, flow=Flow(rank, ""))
        except (DeadlineExceeded, Overloaded) as error:
            self.ended[name] = self.loop.time(), error

    async def learn(self) -> None:
        """Make enough calls of all sizes that their prices are known."""
        for number in range(40):
            for row in range(number % ROWS + 1):
                self.ask(f"learned {number}, {row}")
            await asyncio.sleep(0.15)

    def because(self, name: str) -> str:
        """Return why a request was refused."""
        error = self.ended[name][1]
        assert isinstance(error, DeadlineExceeded | Overloaded)
        return error.because


@simulated
async def test_a_request_that_cannot_meet_its_deadline_is_refused_at_once(loop: SimulatedLoop) -> None:
    """Ten calls are in front of it, one second of work. A deadline of 0.5 s is refused, one of 2 s is met; a critical
    request goes first, and meets both.
    """
    stack = Stack(loop)
    await stack.learn()
    for number in range(10 * ROWS):
        stack.ask(f"crowd {number}")
    await asyncio.sleep(0.01)
    began = loop.time()
    stack.ask("short", within=0.5)
    stack.ask("long", within=2.0)
    stack.ask("critical", within=0.5, rank=CRITICAL)
    await asyncio.sleep(5)
    await stack.batcher.close()
    assert stack.because("short") == "deadline_unreachable"
    assert stack.ended["short"][0] == began
    assert [None, None] == [stack.ended[name][1] for name in ("long", "critical")]


@simulated
async def test_a_queued_request_is_dropped_when_its_deadline_becomes_unreachable(loop: SimulatedLoop) -> None:
    """Calls become three times slower. Requests that cannot be answered leave early, so others are answered in time."""
    stack = Stack(loop)
    await stack.learn()
    for number in range(8 * ROWS):
        stack.ask(f"crowd {number}", within=1.2)
    stack.server.price = Price("slower", 0.3, 1e-4, 0.0, noise=0.0)
    began = loop.time()
    await asyncio.sleep(5)
    await stack.batcher.close()
    told = [(at - began, error) for name, (at, error) in stack.ended.items() if name.startswith("crowd")]
    early = [at for at, error in told if isinstance(error, DeadlineExceeded) and error.because and at < 1.2]
    assert len(early) >= ROWS
    assert [error for _, error in told].count(None) >= 2 * ROWS


@simulated
async def test_a_request_with_nothing_in_front_is_always_sent(loop: SimulatedLoop) -> None:
    """Otherwise a server that was slow once would cause refusals for ever."""
    stack = Stack(loop)
    stack.server.price = Price("stuck", 60.0, 0.0, 0.0, noise=0.0)
    for number in range(20):
        stack.ask(f"patient {number}", within=600.0)
        await asyncio.sleep(70)
    stack.server.price = PRICE
    for number in range(3):
        stack.ask(f"short {number}", within=0.5)
        await asyncio.sleep(1.5)
    await stack.batcher.close()
    assert [stack.ended[f"short {number}"][1] for number in range(3)] == [None] * 3


@simulated
async def test_a_request_knows_how_long_it_was_queued_and_how_long_its_call_took(loop: SimulatedLoop) -> None:
    """Both together are all of its time. A call may run until the latest deadline of its requests."""
    stack, ended = Stack(loop), []
    await stack.learn()
    await asyncio.sleep(1)
    for within in (60.0, 5.0, 9.0):  # the first leaves at once, the others wait for its call and share the next one
        began = loop.time()
        begin(stack.batcher, [Row(4)], began + within, lambda one, *_, at=began: ended.append((one, loop.time() - at)))
        await asyncio.sleep(0.02)
    await asyncio.sleep(1)
    await stack.batcher.close()
    queued, took = ([getattr(one, name) * 1e-9 for one, _ in ended] for name in ("queued_ns", "infer_ns"))
    assert pytest.approx([0.0, 0.08, 0.06], abs=0.02) == queued
    assert pytest.approx([all_of_it for _, all_of_it in ended], abs=1e-3) == list(
        map(sum, zip(queued, took, strict=True))
    )
    assert pytest.approx([60.0, 9.0 - queued[2]], abs=1e-3) == stack.timeouts[-2:]


def limited(loop: SimulatedLoop, pressure: Pressure | None = None) -> Stack:
    """Return a stack whose limit is two calls of ``ROWS`` rows."""
    stack = Stack(loop, pressure or Pressure("always"))
    for _ in range(40):
        for rows in range(1, ROWS + 1):
            stack.batcher.prices.learn(rows, 4 * rows, 0.0, PRICE.seconds(rows, 4))
    stack.batcher.limit.learn(1, 4, 4)
    stack.batcher.limit.per_row *= 1 + 1e-9  # so that no sum of rows is just below the limit
    return stack


def let_in(stack: Stack, rank: int, count: int) -> int:
    """Send ``count`` requests of a class; return how many are admitted."""
    names = [f"{rank} at {stack.loop.time():g}, {number}" for number in range(count)]
    for name in names:
        stack.ask(name, within=1e6, rank=rank)
    return sum(name not in stack.ended for name in names)


@pytest.mark.parametrize(
    ("lower", "higher", "most"), [(DEFAULT, CRITICAL, 9), (BATCH, CRITICAL, 9), (BATCH, DEFAULT, 8)]
)
@simulated
async def test_less_important_work_queued_before_the_limit_refuses_no_request(
    loop: SimulatedLoop, lower: int, higher: int, most: int
) -> None:
    """A hundred requests are queued when the limit comes into force. Their class is full, a higher one is not."""
    pressure = Pressure("auto")
    stack = limited(loop, pressure)
    assert let_in(stack, lower, 100) == 100
    assert stack.batcher.queued() == {name: 100 * (rank == lower) for rank, name in enumerate(CLASSES)}
    assert stack.batcher.work == pytest.approx(stack.batcher.limit.work(100, 400))
    await asyncio.sleep(0.01)
    pressure.press(loop.time())
    assert let_in(stack, lower, 10) == 0
    assert let_in(stack, higher, 40) == most
    assert let_in(stack, lower, 10) == 0
    await stack.batcher.close()


@simulated
async def test_every_ended_request_frees_its_room_in_its_class(loop: SimulatedLoop) -> None:
    """Answered, failed and halved, abandoned in the queue, or past its deadline."""
    stack = limited(loop)

    async def room() -> list[int]:
        found = []
        for rank in (CRITICAL, DEFAULT, BATCH):
            found.append(let_in(stack, rank, 40))
            await asyncio.sleep(30)
        return found

    assert await room() == [9, 8, 4]
    stack.failures = 2
    for within in (0.15, 60.0):
        for rank in (BATCH, DEFAULT, CRITICAL) * 2:
            stack.ask(f"{rank} within {within}", within=within, rank=rank)
    given_up = [
        begin(stack.batcher, [Row(4)], loop.time() + 60, lambda *_: None, flow=Flow(CRITICAL, "")) for _ in range(2)
    ]
    await asyncio.sleep(0.05)
    for entry in given_up:
        stack.batcher.abandon(entry)
    await asyncio.sleep(30)
    assert stack.batcher.is_idle
    assert await room() == [9, 8, 4]


@simulated
async def test_a_request_larger_than_the_limit_is_admitted_whole_or_not_at_all(loop: SimulatedLoop) -> None:
    """Its rows need three calls. It is admitted while there is room for any row."""
    stack = limited(loop)
    first, second = (asyncio.create_task(stack.batcher.submit([Row(4)] * 3 * ROWS, loop.time() + 60)) for _ in range(2))
    with pytest.raises(Overloaded):
        await second
    assert len((await first)[0]["y"]) == 3 * ROWS


@simulated
async def test_an_overload_puts_the_limit_into_force_and_the_oldest_requests_are_refused(loop: SimulatedLoop) -> None:
    """Twice the capacity arrives. The first refusals are made within a second, and no critical request is refused."""
    pressure = Pressure("auto")
    stack = Stack(loop, pressure)
    await stack.learn()
    began = loop.time()
    for number in range(240):
        stack.ask(f"{number}", rank=CRITICAL if number % 12 == 0 else DEFAULT)
        await asyncio.sleep(0.1 / ROWS / 2)
    assert pressure.is_on
    await asyncio.sleep(5)
    await stack.batcher.close()
    ended = {int(name): one for name, one in stack.ended.items() if not name.startswith("learned")}
    assert not any(ended[number][1] for number in range(0, 240, 12))
    refused = [number for number, (_, error) in ended.items() if error is not None]
    assert all(stack.because(str(number)) == "work_full" for number in refused)
    first = min(ended[number][0] for number in refused)
    assert first - began < 1.0
    came = {number: began + number * 0.1 / ROWS / 2 for number in ended}
    assert max(ended[number][0] - came[number] for number in ended if number > 120) < 0.5
    waited = [number for number in refused if ended[number][0] == first]
    assert len(waited) > 1
    assert any(
        came[number] < first for number in range(max(waited) + 1, 240) if number % 12
    )  # not all that were queued
    assert all(ended[number][1] is None for number in range(max(waited) + 1, max(waited) + ROWS // 2))

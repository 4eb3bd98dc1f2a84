"""Whose deadline cannot be met any more is told at once, by what calls have cost; in simulated time."""

from __future__ import annotations

import asyncio
import math
import random
from collections.abc import Sequence
from typing import Any

import pytest

from benchmarks.shared.simulated import Price, Row, Server, SimulatedLoop, simulate
from gateway.admission import Pressure
from gateway.endpoints.batcher import Batcher
from gateway.endpoints.entries import BatchLimits, Entry
from gateway.errors import BackendRefused, DeadlineExceeded, Overloaded
from gateway.trace import BATCH, CRITICAL, DEFAULT, Flow

PRICE = Price("a tenth of a second each", 0.1, 1e-4, 0.0, noise=0.0)
ROWS = 4


class Stack:
    """A batcher over a server of ``PRICE`` whose calls have ``ROWS`` rows; what became of whom, and when."""

    def __init__(self, loop: SimulatedLoop, pressure: Pressure | None = None) -> None:
        self.loop = loop
        limits = BatchLimits(max_rows=ROWS, pressure=pressure or Pressure("off"))
        self.server = Server(loop, PRICE, random.Random(1))
        self.batcher: Batcher[Row] = Batcher(self.run, limits=limits, on_batch=lambda *_: None, clock=loop.time)
        self.ended: dict[str, tuple[float, Exception | None]] = {}
        self.began = 0.0
        self.refused: list[str] = []
        self.failures = 0
        """So many of the next calls fail for a reason of one of their rows."""

    async def run(self, rows: Sequence[Row], timeout: float) -> Any:
        """One call."""
        if self.failures:
            self.failures -= 1
            raise BackendRefused("one of them is bad")
        return await self.server(rows, timeout)

    def ask(self, name: str, within: float = 60.0, rank: int = DEFAULT) -> None:
        """Ask once; a refusal is an end as well."""

        def told(_entry: Entry[Row], _outputs: Any, error: Exception | None) -> None:
            self.ended[name] = self.loop.time(), error

        try:
            self.batcher.begin([Row(4)], self.loop.time() + within, told, flow=Flow(rank, ""))
        except (DeadlineExceeded, Overloaded) as error:
            self.ended[name] = self.loop.time(), error

    async def learn(self) -> None:
        """Let it make so many calls that their price is known."""
        for number in range(40):
            self.ask(f"learned {number}")
            await asyncio.sleep(0.15)

    def because(self, name: str) -> str:
        """Why it was not answered."""
        error = self.ended[name][1]
        assert isinstance(error, DeadlineExceeded | Overloaded)
        return error.because


def test_who_comes_behind_too_much_is_told_at_once() -> None:
    """Ten calls are in front of it, a second of work: half a second will not do, two will."""

    async def story(loop: SimulatedLoop) -> Stack:
        stack = Stack(loop)
        await stack.learn()
        for number in range(10 * ROWS):
            stack.ask(f"crowd {number}")
        await asyncio.sleep(0.01)
        stack.began = loop.time()
        stack.ask("short", within=0.5)
        stack.ask("long", within=2.0)
        await asyncio.sleep(5)
        await stack.batcher.close()
        return stack

    stack = simulate(story)
    assert stack.because("short") == "deadline_unreachable"
    assert stack.ended["short"][0] == stack.began
    assert stack.ended["long"][1] is None


def test_who_waits_is_dropped_when_hope_is_gone_and_those_behind_gain() -> None:
    """Calls get three times slower: whoever cannot be served any more leaves before the deadline, unserved."""

    async def story(loop: SimulatedLoop) -> Stack:
        stack = Stack(loop)
        await stack.learn()
        for number in range(8 * ROWS):
            stack.ask(f"crowd {number}", within=1.2)
        stack.server.price = Price("slower", 0.3, 1e-4, 0.0, noise=0.0)
        stack.began = loop.time()
        await asyncio.sleep(5)
        await stack.batcher.close()
        return stack

    stack = simulate(story)
    told = [(at - stack.began, error) for name, (at, error) in stack.ended.items() if name.startswith("crowd")]
    early = [at for at, error in told if isinstance(error, DeadlineExceeded) and error.because]
    assert max(early) < 1.2
    assert len(early) >= ROWS
    assert [error for _, error in told].count(None) >= 2 * ROWS


def test_what_finds_nothing_in_front_is_tried_whatever_prices_say() -> None:
    """Else a server that was slow once would turn everybody away for ever."""

    async def story(loop: SimulatedLoop) -> Stack:
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
        return stack

    stack = simulate(story)
    assert [stack.ended[f"short {number}"][1] for number in range(3)] == [None] * 3


@pytest.mark.parametrize(("rank", "most"), [(CRITICAL, 17), (DEFAULT, 16), (BATCH, 8)])
def test_classes_fill_what_is_theirs_of_a_fixed_limit(rank: int, most: int) -> None:
    """A limit in time: what one server does in it. Batch work gets half of it, critical work a sixteenth more."""

    async def story(loop: SimulatedLoop) -> Stack:
        stack = Stack(loop, Pressure(15.5 * PRICE.seconds(ROWS, 4) / ROWS))
        stack.batcher.limit.per_row, stack.batcher.limit.per_token = PRICE.seconds(ROWS, 4) / ROWS, 0.0
        for number in range(40):
            stack.ask(str(number), rank=rank)
        stack.refused = [name for name in stack.ended if stack.because(name) == "work_full"]
        await stack.batcher.close()
        return stack

    stack = simulate(story)
    assert len(stack.refused) == 40 - most


def limited(loop: SimulatedLoop, rows: float, pressure: Pressure | None = None) -> Stack:
    """A stack with a fixed limit of so many rows."""
    row_s = PRICE.seconds(ROWS, 4) / ROWS
    stack = Stack(loop, pressure or Pressure(rows * row_s))
    stack.batcher.limit.per_row, stack.batcher.limit.per_token = row_s, 0.0
    stack.batcher.limit.seconds = rows * row_s
    return stack


def let_in(stack: Stack, rank: int, count: int) -> int:
    """How many of so many of a class are let in now."""
    names = [f"{rank} at {stack.loop.time():g}, {number}" for number in range(count)]
    for name in names:
        stack.ask(name, within=1e6, rank=rank)
    return sum(name not in stack.ended for name in names)


@pytest.mark.parametrize(
    ("lower", "higher", "most"), [(DEFAULT, CRITICAL, 17), (BATCH, CRITICAL, 17), (BATCH, DEFAULT, 16)]
)
def test_nobody_is_refused_for_less_important_work_that_came_before_the_limit_held(
    lower: int, higher: int, most: int
) -> None:
    """A hundred wait when somebody is first refused for want of room: their class is full, a higher one is not."""

    async def story(loop: SimulatedLoop) -> None:
        pressure = Pressure("auto")
        stack = limited(loop, 15.5, pressure)
        assert let_in(stack, lower, 100) == 100
        await asyncio.sleep(0.01)
        pressure.press(loop.time())
        assert let_in(stack, lower, 10) == 0
        assert let_in(stack, higher, 40) == most
        assert let_in(stack, lower, 10) == 0
        await stack.batcher.close()

    simulate(story)


def test_less_important_work_in_calls_is_nobodys_reason_to_be_refused() -> None:
    """The limit is smaller than the one call under way, which is of class default."""

    async def story(loop: SimulatedLoop) -> None:
        stack = limited(loop, 1.5)
        assert let_in(stack, DEFAULT, 10) == 2
        await asyncio.sleep(0.01)
        assert let_in(stack, DEFAULT, 1) == 0
        assert let_in(stack, CRITICAL, 10) == 2
        await stack.batcher.close()

    simulate(story)


def test_room_of_every_class_is_the_same_again_when_all_have_ended() -> None:
    """Answered, failed and halved, given up in the queue, too late: whatever ends gives back what it took."""

    async def story(loop: SimulatedLoop) -> None:
        stack = limited(loop, 15.5)

        async def room() -> list[int]:
            found = []
            for rank in (CRITICAL, DEFAULT, BATCH):
                found.append(let_in(stack, rank, 40))
                await asyncio.sleep(30)
            return found

        assert await room() == [17, 16, 8]
        stack.failures = 2
        for within in (0.15, 60.0):
            for rank in (BATCH, DEFAULT, CRITICAL) * 4:
                stack.ask(f"{rank} within {within}", within=within, rank=rank)
        given_up = [
            stack.batcher.begin([Row(4)], loop.time() + 60, lambda *_: None, flow=Flow(CRITICAL, "")) for _ in range(3)
        ]
        await asyncio.sleep(0.05)
        for entry in given_up:
            stack.batcher.abandon(entry)
        await asyncio.sleep(30)
        assert stack.batcher.is_idle
        stack.batcher.limit.per_row, stack.batcher.limit.per_token = PRICE.seconds(ROWS, 4) / ROWS, 0.0
        assert await room() == [17, 16, 8]

    simulate(story)


def test_a_critical_requests_time_suffices_whatever_waits_behind_it() -> None:
    """Ten calls of class default wait, a second of work; it has half a second, goes before them and is answered."""

    async def story(loop: SimulatedLoop) -> Stack:
        stack = Stack(loop)
        await stack.learn()
        for number in range(10 * ROWS):
            stack.ask(f"crowd {number}")
        await asyncio.sleep(0.01)
        stack.ask("critical", within=0.5, rank=CRITICAL)
        await asyncio.sleep(5)
        await stack.batcher.close()
        return stack

    assert simulate(story).ended["critical"][1] is None


def test_the_work_in_hand_and_who_waits_are_known() -> None:
    """What the boards show: nothing when idle, a limit only while one holds."""

    async def story(loop: SimulatedLoop) -> Stack:
        stack = Stack(loop)
        assert stack.batcher.is_idle
        for rank in (DEFAULT, BATCH, BATCH):
            stack.ask(str(rank), rank=rank)
        assert not stack.batcher.is_idle
        assert stack.batcher.queued() == {"critical": 0, "default": 1, "batch": 2}
        assert stack.batcher.work == pytest.approx(stack.batcher.limit.work(3, 12))
        assert math.isnan(stack.batcher.active_limit)
        await stack.batcher.close()
        limited = Stack(loop, Pressure(0.25))
        assert limited.batcher.active_limit == 0.25
        return stack

    simulate(story)


def test_a_request_of_more_than_the_limit_comes_in_as_a_whole_or_not_at_all() -> None:
    """Its rows need three calls, and there is room for one: it is let in while there is any, and never in part."""

    async def story(loop: SimulatedLoop) -> None:
        stack = Stack(loop, Pressure(PRICE.seconds(ROWS, 4)))
        stack.batcher.limit.per_row, stack.batcher.limit.per_token = PRICE.seconds(ROWS, 4) / ROWS, 0.0
        rows = [Row(4)] * 3 * ROWS
        first = asyncio.create_task(stack.batcher.submit(rows, loop.time() + 60))
        await asyncio.sleep(0.05)
        with pytest.raises(Overloaded):
            await stack.batcher.submit(rows, loop.time() + 60)
        outputs, _, _ = await first
        assert len(outputs["y"]) == 3 * ROWS

    simulate(story)


async def patient(stack: Stack, callers: int, *, every: float) -> None:
    """Let so many callers come, one after the other, who ask again when they are answered; wait for eight seconds."""
    is_over = False

    def ask() -> None:
        if not is_over:
            stack.batcher.begin([Row(4)], stack.loop.time() + 60, lambda *_: ask())

    for number in range(callers):
        stack.loop.call_later(number * every, ask)
    await asyncio.sleep(8)
    is_over = True


def test_callers_who_wait_for_their_answers_are_not_limited_however_many_come_at_once() -> None:
    """Ten calls of them: a long queue, which does not get longer."""

    async def story(loop: SimulatedLoop) -> None:
        pressure = Pressure("auto")
        stack = Stack(loop, pressure)
        await stack.learn()
        await patient(stack, 10 * ROWS, every=0.001)
        assert not pressure.is_on
        await stack.batcher.close()

    simulate(story)


def test_while_more_and_more_waits_those_who_came_last_go_first_until_the_limit_holds() -> None:
    """Twice as many come as can be answered: the first ones are refused in the end, and whoever is answered did not
    wait for all that came before.
    """

    async def story(loop: SimulatedLoop) -> Stack:
        stack = Stack(loop, Pressure("auto"))
        await stack.learn()
        stack.began = loop.time()
        for number in range(240):
            stack.ask(f"{number}")
            await asyncio.sleep(0.1 / ROWS / 2)
        await asyncio.sleep(5)
        await stack.batcher.close()
        return stack

    stack = simulate(story)
    took = [
        stack.ended[str(number)][0] - stack.began - number * 0.1 / ROWS / 2
        for number in range(240) if stack.ended[str(number)][1] is None
    ]  # fmt: skip
    assert len(took) > 100
    assert max(took) < 0.35


def test_if_more_comes_than_is_answered_the_limit_holds_and_who_has_waited_longest_is_refused() -> None:
    """Twice as many come as can be answered. Within a second they are refused, first of all those who would have been
    answered last; critical ones are not, though they wait among them.
    """

    async def story(loop: SimulatedLoop) -> Stack:
        pressure = Pressure("auto")
        stack = Stack(loop, pressure)
        await stack.learn()
        stack.began = loop.time()
        for number in range(240):
            stack.ask(f"{number}", rank=CRITICAL if number % 12 == 0 else DEFAULT)
            await asyncio.sleep(0.1 / ROWS / 2)
        assert pressure.is_on
        await asyncio.sleep(5)
        await stack.batcher.close()
        return stack

    stack = simulate(story)
    errors = {int(name): error for name, (_, error) in stack.ended.items() if not name.startswith("learned")}
    assert not any(errors[number] for number in range(0, 240, 12))
    refused = [number for number, error in errors.items() if error is not None]
    assert all(stack.because(str(number)) == "work_full" for number in refused)
    when = {number: stack.ended[str(number)][0] - stack.began for number in errors}
    assert min(when[number] for number in refused) < 1.0
    came = {number: number * 0.1 / ROWS / 2 for number in errors}
    assert max(when[number] - came[number] for number in errors if number > 120) < 0.5
    first = min(when[number] for number in refused)
    waited = [number for number in refused if when[number] == first]
    assert len(waited) > 1
    assert all(errors[number] is None for number in range(max(waited) + 1, max(waited) + ROWS // 2))


def test_when_overload_makes_the_newest_leave_first_the_queue_keeps_its_age_order() -> None:
    """Requests stop arriving after a call of the newest ones has left: the others are answered oldest first."""

    async def story(loop: SimulatedLoop) -> list[int]:
        stack = Stack(loop, Pressure("auto"))
        await stack.learn()
        entries: list[Entry[Row]] = []

        def are_newest_first() -> bool:
            left = [number for number, entry in enumerate(entries) if entry.is_over or entry.call is not None]
            return bool(left) and max(left) >= len(left)

        while not are_newest_first():
            entries.append(stack.batcher.begin([Row(4)], loop.time() + 60, lambda *_: None))
            await asyncio.sleep(0.1 / ROWS / 2)
        queued = [number for number, entry in enumerate(entries) if not entry.is_over and entry.call is None]
        assert len(queued) > ROWS
        answered: list[int] = []
        for number in queued:
            entries[number].on_done = lambda *_, number=number: answered.append(number)
        await asyncio.sleep(5)
        await stack.batcher.close()
        assert sorted(answered) == queued
        return answered

    answered = simulate(story)
    assert answered == sorted(answered)

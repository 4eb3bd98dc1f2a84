"""Numbers of several workers: each tells its parent, which adds them up for whoever asks."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.errors import InternalError
from gateway.metrics import catalog, workers
from gateway.metrics.accumulator import Accumulator, Histogram, Snapshot
from gateway.metrics.observer import Observer
from gateway.metrics.publisher import Publisher
from gateway.metrics.views import Views
from gateway.metrics.workers import Parent, Totals
from tests import expositions
from tests.expositions import counted, histograms
from tests.waiting import LIMIT_S, soon


@pytest.fixture(autouse=True)
def _patient_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    """No stall of the machine reaches what a worker and its parent wait for each other."""
    monkeypatch.setattr(workers, "_GIVE_UP_S", LIMIT_S)
    monkeypatch.setattr(workers, "_LAST_S", LIMIT_S)


class Family:
    """A parent, and its workers by name."""

    def __init__(self) -> None:
        self.totals = Totals(Views(()))
        self.of: dict[str, tuple[socket.socket, Parent, socket.socket]] = {}

    def add(self, name: str) -> Parent:
        """Start a worker; return its way to the parent."""
        parents, link = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.totals.add(parents)
        self.of[name] = (parents, Parent(link), link)
        return self.of[name][1]

    def end(self, name: str) -> None:
        """Kill a worker."""
        parents, _, link = self.of.pop(name)
        link.close()
        self.totals.end(parents)
        parents.close()

    @contextlib.asynccontextmanager
    async def listening(self, **observers: Observer) -> AsyncIterator[list[Publisher]]:
        """Let the parent listen, and these workers run."""
        loop = asyncio.get_running_loop()
        made = [Publisher(observer, self.add(name)) for name, observer in observers.items()]
        running = [asyncio.create_task(one.run()) for one in made]
        every = asyncio.create_task(self._answer())
        for parents, _, _ in self.of.values():
            loop.add_reader(parents, self.totals.hear, parents)
        try:
            yield made
        finally:
            for task in (*running, every):
                task.cancel()
            for one in (one for name, one in zip(observers, made, strict=True) if name in self.of):
                one.close()
            for parents, _, link in self.of.values():
                loop.remove_reader(parents)
                parents.close()
                link.close()

    async def _answer(self) -> None:
        while True:
            self.totals.answer()
            await asyncio.sleep(0.01)


def summed(*living: Snapshot, ended: Sequence[Snapshot] = ()) -> Snapshot:
    """Return the sum of what several workers have told their parent."""
    family, ends = Family(), [f"ended {number}" for number in range(len(ended))]
    for name, snapshot in zip([*ends, *map(str, range(len(living)))], (*ended, *living), strict=True):
        family.add(name).close(snapshot)
    for name in [*family.of]:
        if name in ends:
            family.end(name)
        else:
            family.totals.hear(family.of[name][0])
    merged = family.totals.sum()
    for name in [*family.of]:
        family.end(name)
    return merged


def built(times: int) -> Observer:
    """Return an observer that has counted some builds."""
    observer = Observer()
    for _ in range(times):
        observer.count(catalog.BUILDS, "ok")
    return observer


async def asked(worker: Publisher) -> float:
    """Return how many builds a worker's ``/metrics`` shows."""
    text, _ = await worker.ask(Views.metrics, "")
    return next(value for name, _, value in expositions.parse(text.decode()) if name == catalog.BUILDS.name)


EVENTS = st.lists(
    st.tuples(st.integers(0, 2), st.sampled_from("abc"), st.integers(0, 9), st.sampled_from(["", "tell", "end"])),
    max_size=40,
)  # fmt: skip


@settings(max_examples=60, deadline=None)
@given(EVENTS)
def test_sum_is_what_one_process_would_have_counted(events: list[tuple[int, str, int, str]]) -> None:
    """Whoever counts what, in whatever order series begin, however often they tell, and whoever ends meanwhile."""
    family, alone = Family(), Accumulator()
    parts = {name: Accumulator() for name in "012"}
    for name in parts:
        family.add(name)
    made = 3
    for number, label, value, then in events:
        name = list(parts)[number]
        for numbers in (parts[name], alone):
            numbers.count(catalog.BUILDS, label, by=value)
            numbers.distribution(catalog.ROWS, label, "1").observe((value,))
            numbers.distribution(catalog.VARIABLE_SCALAR, label, "1", "x", bounds=(1.0, 5.0)).observe((value,))
        if then:
            family.of[name][1]._write(parts[name].snapshot(), 0)
        if then == "tell":
            family.totals.hear(family.of[name][0])
        if then == "end":
            family.end(name)
            del parts[name]
            made += 1
            parts[str(made)] = Accumulator()
            family.add(str(made))
    for name, part in parts.items():
        family.of[name][1].close(part.snapshot())
        family.totals.hear(family.of[name][0])
    merged, expected = family.totals.sum(), alone.snapshot()
    assert {k: v for k, v in counted(merged, catalog.BUILDS).items() if v} == {
        k: v for k, v in counted(expected, catalog.BUILDS).items() if v
    }
    assert histograms(merged) == histograms(expected)
    for name in parts:
        family.end(name)
    assert counted(family.totals.sum(), catalog.BUILDS) == counted(merged, catalog.BUILDS)


def test_requests_and_work_in_hand_add_up_over_running_workers() -> None:
    """For other gauges the newest value is used; one that only an ended worker has set is dropped."""
    living, ended, own = Accumulator(), Accumulator(), Accumulator()
    for numbers, value in ((own, 1.0), (living, 2.0), (ended, 4.0)):
        numbers.publish(catalog.IN_FLIGHT, value)
        numbers.publish(catalog.WORK, value, "e", "1")
        numbers.publish(catalog.POLL, value)
    ended.publish(catalog.BACKEND_UP, 1, "gone", "p")
    living.publish(catalog.BACKEND_UP, 1, "there", "p")
    merged = summed(own.snapshot(), living.snapshot(), ended=[ended.snapshot()])
    assert ({(): 3.0}, {(): 2.0}) == (counted(merged, catalog.IN_FLIGHT), counted(merged, catalog.POLL))
    assert {("e", "1"): 3.0} == counted(merged, catalog.WORK)
    assert {("there", "p"): 1.0} == counted(merged, catalog.BACKEND_UP)


def test_what_a_worker_shows_no_more_is_gone() -> None:
    """Prometheus then marks it as stale."""
    family, numbers = Family(), Accumulator()
    way = family.add("one")
    for shown in ({("p",): 1.0, ("q",): 1.0}, {("q",): 1.0}, {}):
        numbers.show(catalog.POOL_WAITING, shown)
        way._write(numbers.snapshot(), 0)
        family.totals.hear(family.of["one"][0])
        assert shown == counted(family.totals.sum(), catalog.POOL_WAITING)
    way.close(numbers.snapshot())
    family.end("one")


def test_what_could_not_be_sent_is_in_the_next_report() -> None:
    """The parent hangs, and its messages wait."""
    family, own = Family(), built(3).snapshot()
    way = family.add("one")
    parents, _, link = family.of["one"]
    with contextlib.suppress(BlockingIOError):
        while True:
            link.send(b"serves 0")
    way._write(own, 0)
    family.totals.hear(parents)
    assert {} == counted(family.totals.sum(), catalog.BUILDS)
    way.close(own)
    family.end("one")
    assert {("ok",): 3.0} == counted(family.totals.sum(), catalog.BUILDS)


async def test_who_asks_gets_what_all_have_counted_until_then(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also two that ask at the same time, after one was killed, and of every question."""
    monkeypatch.setattr("gateway.metrics.workers.WAIT_S", LIMIT_S)
    observers = built(1), built(10), built(100)
    family = Family()
    async with family.listening(one=observers[0], two=observers[1], three=observers[2]) as (one, two, _):
        for _ in range(3):
            for observer in observers:
                observer.count(catalog.BUILDS, "ok")
            expected = sum(counted(of.snapshot(), catalog.BUILDS)["ok",] for of in observers)
            assert [expected, expected] == await asyncio.gather(asked(one), asked(two))
        asyncio.get_running_loop().remove_reader(family.of["three"][2])
        asyncio.get_running_loop().remove_reader(family.of["three"][0])
        family.end("three")
        assert expected == await asked(one)
        assert {"last_minute", "curves"} == (await two.ask(Views.lately, ["t"])).keys()


async def test_of_a_worker_that_does_not_answer_the_last_numbers_are_used() -> None:
    """What it has counted since is shown later; no counter falls."""
    one, two, family = built(1), built(10), Family()
    async with family.listening(one=one, two=two) as (asks, _):
        await soon(lambda: counted(family.totals.sum(), catalog.BUILDS) == {("ok",): 11.0})
        asyncio.get_running_loop().remove_reader(family.of["two"][2])  # it computes, and does not listen
        two.count(catalog.BUILDS, "ok")
        assert await asked(asks) in (11.0, 12.0)
        family.of["two"][1].listen(two.snapshot)
        while await asked(asks) < 12.0:
            pass


async def test_without_an_answer_of_the_parent_there_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """This worker's numbers alone would look like a restart. Whether the parent fails (and goes on), is stopped, or has
    ended.
    """
    async with Family().listening(one=built(1)) as (one,):
        with pytest.raises(InternalError):
            await one.ask(Views.metrics, 5)  # type: ignore[arg-type]
        assert 1.0 == await asked(one)
    monkeypatch.setattr(workers, "_GIVE_UP_S", 0.05)
    family = Family()
    asks = Publisher(built(1), family.add("one"))
    for _ in range(2):
        with pytest.raises(InternalError):
            await asked(asks)
        family.of["one"][0].close()
    asks.close()
    family.of["one"][2].close()


def test_new_bounds_of_a_variable_never_mix_with_the_former_ones() -> None:
    """While only one worker has the new declaration, when both have it, and when it is taken back."""
    one, other = Accumulator(), Accumulator()

    def see(numbers: Accumulator, value: float, *bounds: float) -> None:
        numbers.distribution(catalog.VARIABLE_SCALAR, "e", "1", "x", bounds=bounds).observe((value,))

    def shown() -> tuple[tuple[float, ...], list[float]]:
        return histograms(summed(one.snapshot(), other.snapshot()))["e", "1", "x"]

    see(one, 2.0, 1.0)
    see(other, 0.5, 1.0)
    assert ((1.0,), [1, 1, 2.5]) == shown()
    see(one, 2.0, 1.0, 5.0)
    see(other, 0.5, 1.0)  # still within the former bounds
    assert ((1.0, 5.0), [0, 1, 0, 2.0]) == shown()
    see(other, 9.0, 1.0, 5.0)
    assert ((1.0, 5.0), [0, 1, 1, 11.0]) == shown()
    for worker in (one, other):
        see(worker, 0.5, 1.0)
    assert ((1.0,), [2, 0, 1.0]) == shown()


def test_each_bucket_has_the_newest_trace_of_all_workers() -> None:
    """Also of one that has ended."""
    first, second = Accumulator(), Accumulator()
    for numbers, trace_id, seconds in ((first, "a", 0.004), (first, "a", 0.04), (second, "b", 0.0045)):
        of = numbers.distribution(catalog.REQUEST_SECONDS, "e", "1", "direct")
        of.observe((seconds,))
        of.belongs(trace_id, seconds)
    for merged in (summed(first.snapshot(), second.snapshot()), summed(second.snapshot(), ended=[first.snapshot()])):
        (found,) = (value for value in merged.values() if isinstance(value, Histogram) and value.exemplars)
        assert {("b", 0.0045), ("a", 0.04)} == {(one.trace_id, one.seconds) for one in found.exemplars.values()}


def test_a_snapshot_never_changes() -> None:
    """Another thread reads it while the loop goes on counting."""
    numbers = Accumulator()
    rows = numbers.distribution(catalog.ROWS, "e", "1")
    numbers.count(catalog.BUILDS, "ok")
    rows.observe((2,))
    before = numbers.snapshot()
    numbers.count(catalog.BUILDS, "ok")
    numbers.publish(catalog.POLL, 7)
    rows.observe((2,))
    numbers.count(catalog.BUILDS, "internal")
    after = numbers.snapshot()
    assert [{("ok",): 1.0}, {("ok",): 2.0, ("internal",): 1.0}] == [counted(n, catalog.BUILDS) for n in (before, after)]
    assert [{(): 0.0}, {(): 7.0}] == [counted(n, catalog.POLL) for n in (before, after)]
    assert [{("e", "1"): ((), [1.0, 2.0])}, {("e", "1"): ((), [2.0, 4.0])}] == [histograms(n) for n in (before, after)]

"""Numbers of several workers: each writes whole files, and a reader adds them up."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.errors import InternalError
from gateway.metrics import catalog, sharing
from gateway.metrics.accumulator import Accumulator, Snapshot
from gateway.metrics.observer import Observer
from gateway.metrics.served import Served
from gateway.metrics.sharing import Share, Workers
from gateway.spec import MetricSpec, MetricVariable
from gateway.trace import Trace


def counts(snapshot: Snapshot, metric: catalog.Metric) -> dict[tuple[str, ...], float]:
    """Return the counters of one metric by labels."""
    return {series.labels: value for series, value in snapshot.counted() if series.metric == metric.name}


def gauges(snapshot: Snapshot, metric: catalog.Metric) -> dict[tuple[str, ...], float]:
    """Return the gauges of one metric by labels."""
    return {series.labels: value for series, value in snapshot.shown() if series.metric == metric.name}


def histograms(snapshot: Snapshot) -> dict[tuple[str, ...], tuple[tuple[float, ...], list[float]]]:
    """Return bounds and numbers of every histogram by labels."""
    return {series.labels: (series.bounds, numbers.tolist()) for series, numbers in snapshot.distributed()}


EVENTS = st.lists(
    st.tuples(st.integers(0, 2), st.sampled_from("abc"), st.integers(0, 9), st.booleans()), max_size=40
)  # fmt: skip


@settings(max_examples=60, deadline=None)
@given(EVENTS)
def test_sum_is_what_one_process_would_have_counted(
    tmp_path_factory: pytest.TempPathFactory, events: list[tuple[int, str, int, bool]]
) -> None:
    """Whoever counts what, in whatever order series begin, and however often the numbers are read meanwhile."""
    folder = tmp_path_factory.mktemp("workers")
    parts, alone = [Accumulator() for _ in range(3)], Accumulator()
    shares = [Share(folder, name) for name in ("one", "two")]
    workers = Workers(folder, is_alive=lambda name: True)
    for part, label, value, is_read in events:
        for numbers in (parts[part], alone):
            numbers.count(catalog.BUILDS, label).value += value
            numbers.distribution(catalog.ROWS, label, "1").observe(value)
            numbers.distribution(catalog.BATCH_TOKENS, label, "1").observe(value * 100)
            numbers.gauge(catalog.ENDPOINT_READY, label, "1").set(value)
        if is_read:
            shares[0].write(parts[0].snapshot())
            workers.merged(parts[2].snapshot())
    for share, part in zip(shares, parts, strict=False):
        share.write(part.snapshot())
    merged, expected = workers.merged(parts[2].snapshot()), alone.snapshot()
    assert counts(merged, catalog.BUILDS) == counts(expected, catalog.BUILDS)
    assert histograms(merged) == histograms(expected)
    assert gauges(merged, catalog.ENDPOINT_READY) == gauges(expected, catalog.ENDPOINT_READY)


def test_requests_in_flight_add_up_over_running_workers(tmp_path: Path) -> None:
    """For other gauges the newest value is used; one that only an ended worker has set is dropped."""
    living, ended, own = Accumulator(), Accumulator(), Accumulator()
    for numbers, value in ((own, 1.0), (living, 2.0), (ended, 4.0)):
        numbers.gauge(catalog.IN_FLIGHT).value = value
        numbers.gauge(catalog.POLL).set(value)
    ended.gauge(catalog.BACKEND_UP, "gone", "p").set(1)
    living.gauge(catalog.BACKEND_UP, "there", "p").set(1)
    Share(tmp_path, "living").write(living.snapshot())
    Share(tmp_path, "ended").write(ended.snapshot())
    merged = Workers(tmp_path, is_alive=lambda name: name == "living").merged(own.snapshot())
    assert ({(): 3.0}, {(): 2.0}) == (gauges(merged, catalog.IN_FLIGHT), gauges(merged, catalog.POLL))
    assert {("there", "p"): 1.0} == gauges(merged, catalog.BACKEND_UP)


@settings(max_examples=40, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 3), st.sampled_from("abc"), st.integers(0, 9), st.booleans()), max_size=30))
def test_folding_those_that_ended_changes_no_sum(
    tmp_path_factory: pytest.TempPathFactory, events: list[tuple[int, str, int, bool]]
) -> None:
    """Whenever it is done, also if it is broken off before the folded files are gone; they do not grow in number."""
    folder = tmp_path_factory.mktemp("workers")
    alone, own, workers = Accumulator(), Accumulator(), Workers(folder, "own", is_alive=lambda name: False)
    for number, (kind, label, value, is_broken_off) in enumerate(events):
        worker = Accumulator()
        for numbers in (worker, alone):
            if kind == 0:
                numbers.count(catalog.BUILDS, label).value += value
            elif kind == 1:
                numbers.distribution(catalog.ROWS, label, "1").observe(value)
            else:
                numbers.distribution(catalog.VARIABLE_SCALAR, label, "1", "x", bounds=(1.0, 5.0)).observe(value)
        worker.gauge(catalog.IN_FLIGHT).value = 1
        Share(folder, f"worker-{number}").write(worker.snapshot())
        if kind == 3:
            with pytest.MonkeyPatch.context() as broken:
                if is_broken_off:
                    broken.setattr(Path, "unlink", lambda *_, **__: None)
                sharing.fold(folder, lambda name: False)
        merged, expected = workers.merged(own.snapshot()), alone.snapshot()
        assert counts(merged, catalog.BUILDS) == counts(expected, catalog.BUILDS)
        assert histograms(merged) == histograms(expected)
        assert {(): 0.0} == gauges(merged, catalog.IN_FLIGHT)
    sharing.fold(folder, lambda name: False)
    assert len(list(folder.glob("*.numbers"))) <= 1


def test_numbers_that_move_while_they_are_read_are_counted_once(tmp_path: Path) -> None:
    """A worker's file is folded after the folder was listed and before the file is read."""
    numbers = Accumulator()
    numbers.count(catalog.BUILDS, "ok").value += 1
    for name in ("one", "two"):
        Share(tmp_path, name).write(numbers.snapshot())
    is_folded = False

    def is_alive(name: str) -> bool:
        nonlocal is_folded
        if not is_folded:
            is_folded = True
            sharing.fold(tmp_path, lambda name: False)
        return False

    workers = Workers(tmp_path, "own", is_alive)
    for _ in range(2):
        assert {("ok",): 2.0} == counts(workers.merged(Accumulator().snapshot()), catalog.BUILDS)
    assert {"ended.numbers", "fold.lock"} == {path.name for path in tmp_path.iterdir()}


def test_reading_is_repeated_if_folded_numbers_changed_meanwhile(tmp_path: Path) -> None:
    """Another worker's file is folded after the folder was listed and before the merged file is read."""

    def end(name: str, outcome: str) -> None:
        numbers = Accumulator()
        numbers.count(catalog.BUILDS, outcome).value += 1
        numbers.distribution(catalog.ROWS, name, "1").observe(1)
        Share(tmp_path, name).write(numbers.snapshot())

    def is_alive(name: str) -> bool:
        if name == "ended":
            sharing.fold(tmp_path, lambda name: False)
        return False

    workers = Workers(tmp_path, "own", is_alive)
    end("one", "ok")
    sharing.fold(tmp_path, lambda name: False)
    assert {("ok",): 1.0} == counts(workers.merged(Accumulator().snapshot()), catalog.BUILDS)
    end("two", "internal")
    merged = workers.merged(Accumulator().snapshot())
    assert {("ok",): 1.0, ("internal",): 1.0} == counts(merged, catalog.BUILDS)
    assert 2 == len(histograms(merged))


def test_folding_deletes_the_other_files_of_an_ended_worker(tmp_path: Path) -> None:
    """Its exemplars and unfinished files are deleted; all files of a living worker stay, unfinished ones too."""
    numbers = Accumulator()
    for name in ("living", "ended-one"):
        Share(tmp_path, name).write(numbers.snapshot())
        for suffix in (sharing.EXEMPLARS, sharing.ASIDE, f"{sharing.COMPARED}{sharing.ASIDE}"):
            (tmp_path / f"{name}{suffix}").touch()
    sharing.fold(tmp_path, lambda name: name == "living")
    living = {f"living{suffix}" for suffix in (".numbers", ".exemplars", ".new", ".compared.new")}
    assert {*living, "ended.numbers", "fold.lock"} == {path.name for path in tmp_path.iterdir()}


class Declared:
    """A worker with one declared variable `x`."""

    def __init__(self, kind: str, *bounds: float) -> None:
        self.observer = Observer(later=lambda drain, _: None)
        self.declare(kind, *bounds)

    def declare(self, kind: str, *bounds: float) -> None:
        spec = MetricSpec("e/1", None, (MetricVariable("x", kind, bounds),))
        self.observer.watch.configure({"e/1": Served("e", "1")}, {"e/1": spec}, 1.0)

    def see(self, *values: float) -> None:
        for value in values:
            trace = Trace("id")
            trace.url, trace.body = "e/1", {"x": value}
            self.observer.started()
            self.observer.finished(trace)
        self.observer.settle()


def test_new_bounds_of_a_variable_never_mix_with_the_former_ones(tmp_path: Path) -> None:
    """While only one worker has the new declaration, when both have it, and when it is taken back."""
    one, other = Declared("scalar", 1.0), Declared("scalar", 1.0)
    share, workers = Share(tmp_path, "other"), Workers(tmp_path, is_alive=lambda name: True)

    def shown() -> tuple[tuple[float, ...], list[float]]:
        share.write(other.observer.snapshot())
        return histograms(workers.merged(one.observer.snapshot()))["e", "1", "x"]

    one.see(0.5, 2.0)
    other.see(0.5)
    assert ((1.0,), [2, 1, 3.0]) == shown()
    one.declare("scalar", 1.0, 5.0)
    one.see(2.0)
    assert ((1.0, 5.0), [0, 1, 0, 2.0]) == shown()
    other.see(0.5)  # still within the former bounds
    assert ((1.0, 5.0), [0, 1, 0, 2.0]) == shown()
    other.declare("scalar", 1.0, 5.0)
    other.see(9.0)
    assert ((1.0, 5.0), [0, 1, 1, 11.0]) == shown()
    for worker in (one, other):
        worker.declare("scalar", 1.0)
    one.see(0.5)
    assert ((1.0,), [1, 0, 0.5]) == shown()


def test_the_newest_value_of_a_variable_is_shown(tmp_path: Path) -> None:
    """By the time of the value, not by the time of writing."""
    early, late = Declared("value"), Declared("value")
    workers = Workers(tmp_path, is_alive=lambda name: True)
    early.see(1.0)
    late.see(2.0)
    Share(tmp_path, "late").write(late.observer.snapshot())
    Share(tmp_path, "early").write(early.observer.snapshot())
    assert {("e", "1", "x"): 2.0} == gauges(workers.merged(Observer().snapshot()), catalog.VARIABLE_VALUE)
    early.see(3.0)
    assert {("e", "1", "x"): 3.0} == gauges(workers.merged(early.observer.snapshot()), catalog.VARIABLE_VALUE)


def test_a_full_disk_leaves_the_last_numbers_intact(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No reader sees half a file, and new numbers are written once there is room."""
    numbers, share = Accumulator(), Share(tmp_path, "other")
    workers = Workers(tmp_path, is_alive=lambda name: True)
    numbers.count(catalog.BUILDS, "ok").value += 1
    share.write(numbers.snapshot())
    numbers.count(catalog.BUILDS, "internal").value += 1

    def fail(*_: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as full:
        full.setattr(Path, "replace", fail)
        with pytest.raises(OSError, match="No space"):
            share.write(numbers.snapshot())
    assert [share.path] == list(tmp_path.iterdir())
    assert {("ok",): 1.0} == counts(workers.merged(Accumulator().snapshot()), catalog.BUILDS)
    share.write(numbers.snapshot())
    assert {("ok",): 1.0, ("internal",): 1.0} == counts(workers.merged(Accumulator().snapshot()), catalog.BUILDS)


def test_unchanged_numbers_are_not_written_again(tmp_path: Path) -> None:
    """An idle worker writes only when asked."""
    numbers, share = Accumulator(), Share(tmp_path, "other")
    share.write(numbers.snapshot(), answers=1)
    written = share.path.stat().st_ino
    share.write(numbers.snapshot(), answers=1)
    assert written == share.path.stat().st_ino
    share.write(numbers.snapshot(), answers=2)
    assert written != share.path.stat().st_ino


def test_whether_all_running_workers_have_answered(tmp_path: Path) -> None:
    """Judged by what each has written; ended workers are not awaited."""
    shares = {name: Share(tmp_path, name) for name in ("one", "two", "ended")}
    for share in shares.values():
        share.write(Accumulator().snapshot())
    workers = Workers(tmp_path, is_alive=lambda name: name != "ended")
    since = sharing.ask(tmp_path)
    shares["one"].write(Accumulator().snapshot(), sharing.asked(tmp_path))
    assert not workers.have_answered(since)
    shares["two"].write(Accumulator().snapshot(), sharing.asked(tmp_path))
    assert workers.have_answered(since)


def test_every_question_of_another_worker_is_seen(tmp_path: Path) -> None:
    """Also two within one tick of the file system's clock."""
    assert sharing.asked(tmp_path) == 0
    seen = set()
    for _ in range(5):
        assert sharing.ask(tmp_path) == sharing.asked(tmp_path)
        seen.add(sharing.asked(tmp_path))
    assert len(seen) == 5


def test_a_missing_folder_of_numbers_is_an_error(tmp_path: Path) -> None:
    """An empty page would look like a gateway without traffic."""
    with pytest.raises(InternalError, match="is gone"):
        Workers(tmp_path / "gone").merged(Accumulator().snapshot())


def test_a_process_is_identified_by_its_id_and_start_time() -> None:
    """Ids are used again; a zombie has ended."""
    name = sharing.this_process()
    pid, _, started = name.partition("-")
    assert int(pid) == os.getpid()
    assert sharing._is_running(name)
    assert not sharing._is_running(f"{pid}-{int(started) + 1}")
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    of_child = f"{child.pid}-{sharing._process(child.pid)[1]}"
    assert sharing._is_running(of_child)
    child.communicate(b"\n")
    assert not sharing._is_running(of_child)

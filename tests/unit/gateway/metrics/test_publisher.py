"""The publisher reads and formats numbers in a thread beside the request loop, in slices."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path

import orjson
import pytest

from gateway.errors import InternalError
from gateway.metrics import drift, exposition, judge
from gateway.metrics.judge import Judge
from gateway.metrics.observer import Observer
from gateway.metrics.publisher import Publisher
from gateway.metrics.served import Served
from gateway.metrics.sharing import Share
from gateway.trace import Trace
from tests.unit.gateway.metrics.events import FAILURES, happen
from tests.waiting import LIMIT_S, soon


class Pauses:
    """Counts pauses by thread."""

    def __init__(self) -> None:
        self.by_thread: dict[int, int] = {}

    def __call__(self) -> None:
        self.by_thread[threading.get_ident()] = self.by_thread.get(threading.get_ident(), 0) + 1


def busy() -> Observer:
    """Return an observer that has counted everything that can happen."""
    observer = Observer(failures=FAILURES)
    happen(observer)
    return observer


def share_of_others(folder: Path, number: int) -> None:
    """Write the files of other workers that have ended."""
    for i in range(number):
        Share(folder, f"other-{i}").write(busy().snapshot())


@pytest.mark.parametrize("others", [None, 7])
async def test_metrics_are_merged_and_rendered_beside_the_loop_in_slices(tmp_path: Path, others: int | None) -> None:
    """One pause for every series read and every line written, none of them in the loop's thread."""
    pauses = Pauses()
    if others:
        share_of_others(tmp_path, others)
    publisher = Publisher(busy(), tmp_path if others else None, new_pace=lambda: pauses)
    text, _ = await publisher.metrics("")
    ((thread, made),) = pauses.by_thread.items()
    publisher.close()
    assert thread != threading.get_ident()
    assert made >= sum(not line.startswith(b"#") for line in text.splitlines())


async def test_statistics_and_the_last_minute_are_made_beside_the_loop_too(tmp_path: Path) -> None:
    """The page and the Open Inference Protocol use the same numbers."""
    pauses = Pauses()
    share_of_others(tmp_path, 3)
    publisher = Publisher(busy(), tmp_path, new_pace=lambda: pauses)
    rows = {(row["name"], row["version"]): row for row in await publisher.statistics()}
    assert 4 * 6 == rows["t", "1"]["inference_stats"]["success"]["count"]
    found = await publisher.last_minute()
    publisher.close()
    assert {"last_minute", "drift", "compared", "accuracy", "objectives"} == found.keys()
    assert threading.get_ident() not in pauses.by_thread


async def test_the_loop_runs_while_other_workers_are_awaited(tmp_path: Path) -> None:
    """Two workers that ask each other at the same time answer each other."""
    one, other = Publisher(busy(), tmp_path), Publisher(busy(), tmp_path)
    # Both are this process: the second one's file has another name, so that each counts the other.
    for publisher in (one, other):
        assert publisher._workers is not None
        publisher._workers._is_alive = lambda name: True
    assert other._share is not None
    assert other._workers is not None
    other._share = Share(tmp_path, "other")
    other._workers._own = "other"
    running = [asyncio.create_task(publisher.run()) for publisher in (one, other)]
    while len(list(tmp_path.glob("*.numbers"))) < 2:
        await asyncio.sleep(0.01)
    for _ in range(3):
        texts = await asyncio.gather(one.metrics(""), other.metrics(""))
        assert 2 == len(texts)
        for text, _ in texts:
            found = {(n, *at.values()): v for n, at, v in exposition.parse(text.decode())}
            assert 2.0 == found["gateway_endpoint_builds_total", "ok"]
    for task in running:
        task.cancel()
    for publisher in (one, other):
        publisher.close()


async def test_a_removed_folder_is_told_at_metrics_and_stops_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The request for /metrics fails with what to do; sharing and sampling go on."""
    publisher = Publisher(busy(), tmp_path / "gone")
    running = asyncio.create_task(publisher.run())
    with pytest.raises(InternalError, match="is gone"):
        await publisher.metrics("")
    await soon(lambda: any("not counted" in record.message for record in caplog.records))
    assert not running.done()
    running.cancel()
    publisher.close()
    assert 1 == sum("not counted" in record.message for record in caplog.records)


async def test_the_last_numbers_are_written_at_the_end(tmp_path: Path) -> None:
    """An orderly end of a worker loses nothing."""
    observer = busy()
    publisher = Publisher(observer, tmp_path)
    observer.built("ok")
    publisher.close()
    heir = Publisher(Observer(), tmp_path)
    assert heir._workers is not None
    heir._workers._own = "heir"
    text, _ = await heir.metrics("")
    heir.close()
    assert b'gateway_endpoint_builds_total{outcome="ok"} 2.0' in text


async def test_a_disk_that_hangs_does_not_keep_a_worker_from_ending(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its last numbers are lost, and nothing else."""
    publisher = Publisher(busy(), tmp_path)
    monkeypatch.setattr("gateway.metrics.publisher._LAST_S", 0.05)
    goes_on, written = threading.Event(), []
    monkeypatch.setattr(publisher, "_write", lambda *_: written.append(goes_on.wait(60)))
    publisher.close()
    assert [] == written
    goes_on.set()


async def test_verdicts_are_published_for_the_page_and_prometheus(tmp_path: Path) -> None:
    """The gauge on `/metrics` equals the page's drift; the state is saved when the publisher ends."""
    observer = Observer(failures=FAILURES)
    bins = drift.enum_bins({"cat": 2_500, "dog": 2_500})
    observer.watch.configure({"e/1": Served("e", "1", True, ("cat", "dog"), {"predicted_label": bins})}, {}, 1.0)
    publisher = Publisher(observer, judge=Judge(tmp_path, 7.0))
    running = asyncio.create_task(publisher.run())
    try:
        async with asyncio.timeout(LIMIT_S):
            while b'gateway_drift_evidence_days{endpoint="e"' not in (await publisher.metrics(""))[0]:
                await asyncio.sleep(0.01)
        (told,) = (await publisher.last_minute())["drift"]
        assert (0.0, 0.0, 7.0, "too few") == tuple(
            told[name] for name in ("days", "endpoint_days", "alarm_days", "state")
        )
    finally:
        running.cancel()
        publisher.close()
    assert (tmp_path / judge.FILE).exists()


async def test_every_worker_knows_how_versions_compare(tmp_path: Path) -> None:
    """One of them compares, with the counts of all; the others' status shows the result."""
    observer = Observer(failures=FAILURES, later=lambda drain, _: None)
    served = {f"e/{version}": Served("e", version, True, ("good", "bad")) for version in "12"}
    observer.watch.configure(served, {}, 1.0)
    one, other = Publisher(observer, tmp_path), Publisher(Observer(), tmp_path)
    assert one._share is not None
    assert other._share is not None
    assert other._workers is not None
    other._share.path, other._workers._own = tmp_path / "other.numbers", "other"

    async def answer(requests: int) -> None:
        for number in range(requests):
            for version, route in (("1", "stable"), ("2", "canary")):
                trace = Trace("id")
                trace.endpoint, trace.version, trace.url, trace.route = "e", version, f"e/{version}", route
                scores = {"good": 0.9, "bad": 0.1}
                trace.answer = {"label": ("good", "bad")[number % 2], "score": 0.9, "scores": scores}
                trace.outcome = "ok"
                observer.started()
                observer.finished(trace)
        await one._read(one._look)

    for requests in (1, 1, 150):
        await answer(requests)
    told = [(await publisher.last_minute())["compared"] for publisher in (one, other)]
    assert orjson.loads(orjson.dumps(told[0])) == told[1]
    by_name = {each["variable"]: each for each in told[0]}
    assert {"predicted_label", "top_score"} == by_name.keys()
    assert (150, "2", "1") == tuple(by_name["predicted_label"][name] for name in ("n", "version", "beside"))
    for publisher in (one, other):
        publisher.close()

"""Reports to ClearML: figures of every version, a line for each change, limits, and outages."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from deploy.cli.clearml_log import MAX_LINES, MAX_SCALARS, compare, follow
from gateway.errors import RegistryUnavailable

ROW = {"endpoint": "e", "version": "1", "route": "direct", "rate": 2.0, "share": 1.0, "failed": 0.0, "p50": 0.01,
       "p95": 0.02, "p99": None, "rows_per_call": 3.0, "history": []}  # fmt: skip
DRIFT = {"endpoint": "e", "version": "1", "variable": "x", "days": 40.0, "state": "drift"}


def status(**parts: Any) -> dict[str, Any]:
    """Return the /v1/status of a healthy gateway."""
    return {
        "ready": True, "not_ready_because": [], "endpoints": [], "pending": [], "canaries": {}, "faults": [],
        "triton": {}, "last_minute": [], "drift": [], **parts,
    }  # fmt: skip


def served(url: str, model: str) -> dict[str, Any]:
    """An endpoint of the status."""
    return {"url": url, "model_name": model, "model_id": f"id-{model}"}


def test_each_version_has_its_numbers() -> None:
    """Figures are by endpoint, version and route; unknown paths are left out."""
    found = compare(status(last_minute=[ROW, {**ROW, "endpoint": ""}], drift=[DRIFT]), None)
    assert {
        ("requests per second", "e 1 direct", 2.0), ("failed, share", "e 1 direct", 0.0),
        ("p50, ms", "e 1 direct", 10.0), ("p95, ms", "e 1 direct", 20.0),
        ("rows per call to Triton", "e 1 direct", 3.0), ("drift, evidence in days", "e 1 x", 40.0),
    } == set(found.scalars)  # fmt: skip


def test_a_line_is_said_once_when_something_changes() -> None:
    """Each change (served, replaced, failed, faulty, gone) gives one line; no change gives none."""
    first = status(endpoints=[served("e/1", "a")], drift=[DRIFT])
    lines = compare(first, None).lines
    assert {"gateway: ready", "endpoint e/1: is served with a id-a", "x of e 1: has drifted"} == set(lines)
    assert () == compare(first, first).lines
    pending = [{"url": "e/1", "state": "failed", "reason": "no such model"}]
    second = status(endpoints=[served("e/1", "b")], pending=pending, ready=False, not_ready_because=["Triton is away"])
    assert {
        "gateway: not ready: Triton is away", "endpoint e/1: is served with b id-b",
        "new version of e/1: failed: no such model", "x of e 1: no longer",
    } == set(compare(second, first).lines)  # fmt: skip
    assert ("the gateway does not answer",) == compare(None, second).lines
    assert () == compare(None, None).lines


def test_a_round_is_bounded_whatever_is_deployed() -> None:
    """It also says that something was left out."""
    many = status(
        endpoints=[served(f"e{i}/1", "m") for i in range(300)],
        last_minute=[{**ROW, "endpoint": f"e{i}"} for i in range(300)],
    )
    found = compare(many, None)
    assert (MAX_SCALARS, MAX_LINES) == (len(found.scalars), len(found.lines))
    assert "more lines" in found.lines[-1]


class Sink:
    """Keeps the events, unless it is down."""

    def __init__(self) -> None:
        self.rounds: list[Sequence[Mapping[str, Any]]] = []
        self.is_down = False

    def report(self, events: Sequence[Mapping[str, Any]]) -> None:
        if self.is_down:
            raise RegistryUnavailable("the server does not answer")
        self.rounds.append(events)


def test_what_cannot_be_sent_is_left_out_said_once_and_does_not_stop_it() -> None:
    """Reports are dropped while ClearML is down; iterations follow the time."""
    sink, said, clock = Sink(), [], [600.0]

    def wait(seconds: float) -> bool:
        clock[0] += seconds
        sink.is_down = 660 <= clock[0] < 840
        return clock[0] > 960

    follow(
        lambda: status(last_minute=[ROW]), sink, "task", every=60, wait=wait, say=said.append, clock=lambda: clock[0]
    )
    scalars = [[e for e in events if e["type"] == "training_stats_scalar"] for events in sink.rounds]
    assert [600, 840, 900, 960] == [events[0]["iter"] for events in scalars]
    assert 2 == len(said)
    assert "dropped" in said[0]
    assert {"task"} == {event["task"] for events in sink.rounds for event in events}


@pytest.mark.parametrize("every", [10.0, 60.0, 3600.0])
def test_iterations_are_seconds_however_often_it_looks(every: float) -> None:
    """A curve continues with another `--every`, and no two reports share an iteration."""
    sink, clock = Sink(), [1_700_000_000.5]

    def wait(seconds: float) -> bool:
        clock[0] += seconds
        return len(sink.rounds) == 5

    follow(lambda: status(last_minute=[ROW]), sink, "t", every=every, wait=wait, say=print, clock=lambda: clock[0])
    assert [1_700_000_000 + int(every) * i for i in range(5)] == [events[0]["iter"] for events in sink.rounds]

"""Evidence of drift from the counters of all workers: one judge at a time, and no loss over a restart."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from gateway.metrics import catalog, drift, judge
from gateway.metrics.accumulator import Accumulator, Snapshot
from gateway.metrics.drift import Bins
from gateway.metrics.evidence import Judged
from gateway.metrics.judge import Judge
from gateway.metrics.observer import Observer

BINS = drift.enum_bins({"cat": 2_500, "dog": 2_500})


class Counted:
    """The counters of one endpoint's variable."""

    def __init__(self, bins: Bins = BINS) -> None:
        self.numbers = Accumulator()
        self.refer(bins)

    def refer(self, bins: Bins) -> None:
        """Set the reference."""
        self.key = ("e", "1", "animal", bins.id)
        for name, ratio in zip(bins.names, bins.ratios(), strict=True):
            self.numbers.gauge(catalog.DRIFT_REFERENCE, *self.key, name).set(ratio)
            self.numbers.count(catalog.DRIFT_OBSERVATIONS, *self.key, name)
        self.numbers.gauge(catalog.DRIFT_REFERENCE_SIZE, *self.key).set(bins.total)

    def see(self, cats: int, dogs: int) -> Snapshot:
        """Count more values."""
        for name, times in (("cat", cats), ("dog", dogs)):
            self.numbers.count(catalog.DRIFT_OBSERVATIONS, *self.key, name).value += times
        return self.numbers.snapshot()


def days(found: object) -> float:
    """Return the evidence of the only variable."""
    assert isinstance(found, dict)
    (judged,) = found.values()
    assert isinstance(judged, Judged)
    return judged.days


def test_a_change_becomes_evidence_and_stationary_traffic_does_not() -> None:
    """By variable and reference."""
    counted, judged = Counted(), Judge()
    judged.update(0.0, counted.see(0, 0))
    for minute in range(1, 200):
        assert days(judged.update(60.0 * minute, counted.see(5, 5))) < 1
    for minute in range(200, 300):
        found = judged.update(60.0 * minute, counted.see(9, 1))
    assert days(found) > drift.ALARM_DAYS


def test_counts_from_before_the_first_look_are_ignored() -> None:
    """Their age is unknown."""
    counted, judged = Counted(), Judge()
    assert 0 == days(judged.update(0.0, counted.see(9_000, 1_000)))
    assert 0 == days(judged.update(60.0, counted.see(0, 0)))


def test_a_new_reference_starts_anew_and_a_removed_one_is_dropped() -> None:
    """Evidence against the former reference says nothing about the new one."""
    counted, judged = Counted(), Judge()
    judged.update(0.0, counted.see(0, 0))
    for minute in range(1, 60):
        found = judged.update(60.0 * minute, counted.see(90, 10))
    assert days(found) > drift.ALARM_DAYS
    for name in BINS.names:
        counted.numbers.gauge(catalog.DRIFT_REFERENCE, *counted.key, name).set(math.nan)
    counted.refer(drift.enum_bins({"cat": 4_500, "dog": 500}))
    for minute in range(60, 120):
        found = judged.update(60.0 * minute, counted.see(90, 10))
    assert days(found) < 1


def test_one_of_several_workers_judges_and_another_takes_over(tmp_path: Path) -> None:
    """The second one waits until the first ends; then it continues from the first one's state."""
    counted, first, second = Counted(), Judge(tmp_path), Judge(tmp_path)
    first.update(0.0, counted.see(0, 0))
    for minute in range(1, 60):
        found = first.update(60.0 * minute, counted.see(90, 10))
        assert second.update(60.0 * minute, counted.see(0, 0)) is None
    first.close()
    again = second.update(3_600.0, counted.see(0, 0))
    assert days(found) == days(again)
    assert days(second.update(3_660.0, counted.see(90, 10))) > drift.ALARM_DAYS
    second.close()


@pytest.mark.parametrize("content", [b"{", b'[9, ["e"], 1, 2]\n', b'[1, "x"]\n', b"\xff\n"])
def test_an_unusable_file_is_ignored(tmp_path: Path, content: bytes) -> None:
    """The judge starts anew and logs a warning."""
    (tmp_path / judge.FILE).write_bytes(content)
    counted, judged = Counted(), Judge(tmp_path)
    assert 0 == days(judged.update(0.0, counted.see(0, 0)))
    judged.close()


def test_without_a_writable_folder_the_state_is_not_kept(tmp_path: Path) -> None:
    """Judging works all the same."""
    (tmp_path / "file").write_text("")
    counted, judged = Counted(), Judge(tmp_path / "file" / "folder")
    assert 0 == days(judged.update(0.0, counted.see(0, 0)))
    judged.close()


def test_the_state_of_versions_that_are_still_loading_is_kept(tmp_path: Path) -> None:
    """After a restart a version may take minutes to load."""
    counted, first = Counted(), Judge(tmp_path)
    first.update(0.0, counted.see(0, 0))
    for minute in range(1, 60):
        found = first.update(60.0 * minute, counted.see(90, 10))
    first.close()
    second = Judge(tmp_path)
    second.update(3_600.0, Accumulator().snapshot())
    second.close()
    third = Judge(tmp_path)
    third.update(3_700.0, Accumulator().snapshot())
    assert days(found) == days(third.update(3_800.0, Counted().see(0, 0)))
    third.close()


def test_evidence_is_published_and_removed() -> None:
    """A variable that is no longer judged becomes NaN; `since` is published for evidence of at least a day."""
    observer = Observer()
    strong, weak = ("e", "1", "animal", "r"), ("e", "1", "length", "r")
    observer.drifts({strong: Judged(40.0, 0.1, 7.0), weak: Judged(0.1, 0.1, 7.0)}, 30.0)
    observer.drifts({weak: Judged(0.1, 0.1, 7.0)}, 30.0)
    shown = {(series.metric, series.labels): value for series, value in observer.snapshot().shown()}
    assert math.isnan(shown[catalog.DRIFT_EVIDENCE.name, strong[:3]])
    assert 0.1 == shown[catalog.DRIFT_EVIDENCE.name, weak[:3]]
    assert (catalog.DRIFT_SINCE.name, weak[:3]) not in shown
    assert 30.0 == shown[catalog.DRIFT_ALARM.name, ()]

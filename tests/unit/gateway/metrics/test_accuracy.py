"""Accuracy by version, over restarts and workers, and compared with what its scores let expect."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from gateway.metrics import catalog
from gateway.metrics.accumulator import Accumulator
from gateway.metrics.accuracy import FILE, Accuracy, of_gauges
from gateway.metrics.feedback import FeedbackCounts, Labelled
from gateway.metrics.observer import Observer


class Gateway:
    """The counts of one run of a gateway."""

    def __init__(self) -> None:
        self.numbers = Accumulator()
        self._counts = FeedbackCounts(self.numbers)
        self._scores = self.numbers.distribution(
            catalog.VARIABLE_SCALAR, "e", "1", "top_score", bounds=catalog.RATIO_BUCKETS
        )

    def labels(self, right: int, wrong: int, score: float | None = 0.98) -> None:
        for n in range(right + wrong):
            self._counts.add(Labelled("e", "1", "A", "A" if n < right else "B", score))

    def answers(self, count: int, score: float) -> None:
        for _ in range(count):
            self._scores.observe(score)


def test_labels_are_counted_over_restarts(tmp_path: Path) -> None:
    """The file's labels and the new ones; a second look at the same counters adds nothing."""
    kept, gateway = Accuracy(tmp_path), Gateway()
    gateway.labels(8, 2)
    for now in (0.0, 5.0):
        real = kept.update(now, gateway.numbers.snapshot())["e", "1"].real
        assert real is not None
        assert (10, 0.8) == (real.answers, real.value)
    kept.save()
    again, gateway = Accuracy(tmp_path), Gateway()
    assert 10 == again.update(10.0, gateway.numbers.snapshot())["e", "1"].real.answers  # type: ignore[union-attr]
    gateway.labels(0, 10)
    real = again.update(15.0, gateway.numbers.snapshot())["e", "1"].real
    assert real is not None
    assert (20, 0.4) == (real.answers, real.value)


def test_a_worker_that_continues_does_not_count_twice(tmp_path: Path) -> None:
    """The counters of the run also continue: their values are in the file already."""
    gateway, first = Gateway(), Accuracy(tmp_path)
    gateway.labels(5, 5)
    first.update(0.0, gateway.numbers.snapshot())
    first.save()
    second = Accuracy(tmp_path)
    assert 10 == second.update(5.0, gateway.numbers.snapshot())["e", "1"].real.answers  # type: ignore[union-attr]
    gateway.labels(1, 0)
    assert 11 == second.update(9.0, gateway.numbers.snapshot())["e", "1"].real.answers  # type: ignore[union-attr]


def test_harder_answers_are_expected_to_be_right_less_often(tmp_path: Path) -> None:
    """By the scores of the last hour, calibrated with labels."""
    kept, gateway = Accuracy(tmp_path), Gateway()
    gateway.labels(980, 20, 0.98)
    gateway.labels(300, 200, 0.65)
    kept.update(0.0, gateway.numbers.snapshot())
    gateway.answers(1000, 0.98)
    easy = kept.update(60.0, gateway.numbers.snapshot())["e", "1"].expected
    kept.update(4000.0, gateway.numbers.snapshot())
    gateway.answers(1000, 0.65)
    hard = kept.update(8000.0, gateway.numbers.snapshot())["e", "1"].expected
    assert easy is not None
    assert hard is not None
    assert (1000, 1000) == (easy.answers, hard.answers)
    assert abs(easy.value - 0.98) < 0.02
    assert abs(hard.value - 0.6) < 0.06


def test_an_unreadable_file_is_ignored(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A warning is logged, and counting starts anew."""
    (tmp_path / FILE).write_text("no json\n")
    gateway = Gateway()
    gateway.labels(1, 0)
    assert 1 == Accuracy(tmp_path).update(0.0, gateway.numbers.snapshot())["e", "1"].real.answers  # type: ignore[union-attr]
    assert "cannot be read" in caplog.text


def test_versions_without_new_labels_are_dropped_from_the_file(tmp_path: Path) -> None:
    """90 days after their last label."""
    line = [1, ["old", "1"], 0.0, [[0.0, 1.0]] * 16]
    (tmp_path / FILE).write_text(json.dumps(line) + "\n")
    kept, gateway = Accuracy(tmp_path), Gateway()
    gateway.labels(1, 0)
    kept.update(91 * 86400.0, gateway.numbers.snapshot())
    kept.save()
    assert [["e", "1"]] == [json.loads(text)[1] for text in (tmp_path / FILE).read_text().splitlines()]


def test_gauges_say_what_is_known() -> None:
    """The status of any worker is read from the gauges; a value that is unknown is NaN."""
    gateway, kept, observer = Gateway(), Accuracy(), Observer()
    gateway.labels(900, 100)
    observer.accuracies(kept.update(0.0, gateway.numbers.snapshot()))
    [found] = of_gauges(observer.snapshot())
    assert ("e", "1", 1000, None) == (found["endpoint"], found["version"], found["real"]["answers"], found["expected"])
    gateway.answers(50, 0.98)
    observer.accuracies(kept.update(5.0, gateway.numbers.snapshot()))
    [found] = of_gauges(observer.snapshot())
    assert 50 == found["expected"]["answers"]
    assert found["expected"]["low"] < 0.9 < found["expected"]["high"]

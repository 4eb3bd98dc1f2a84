"""Callers who do not wait for each other, against a server of a few lines."""

from __future__ import annotations

from contextlib import closing

import pytest

from benchmarks.shared.crowd import Crowd, Seen, recovered_after
from benchmarks.shared.load import render
from tests.unit.benchmarks.shared.test_load import server

GOOD = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}"
FULL = b"HTTP/1.1 429 Too Many Requests\r\ncontent-length: 4\r\n\r\nfull"
SILENT = b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\n"


def crowd(answers: list[bytes], *, patience: float = 5.0) -> list[Seen]:
    """What becomes of two phases of some 40 callers each."""
    with server(answers) as url, closing(Crowd(url, render(url, [b"{}"]), patience=patience)) as made:
        return made.send([(200.0, 0.2), (400.0, 0.1)], 50.0, seed=3)


def test_everybody_comes_whatever_the_others_get() -> None:
    """Answered, refused: each counts once, in its phase."""
    found = crowd([GOOD, FULL] * 20 + [GOOD])
    assert [one.offered for one in found] == [one.sent for one in found] == [len(one.late) for one in found]
    assert [one.offered for one in found] == [len(one.answered) + len(one.refused) for one in found]
    assert {"429": 20} == dict(found[0].statuses + found[1].statuses)
    assert all(one.offered > 20 for one in found)
    assert 0 == sum(one.gave_up + one.lost for one in found)


def test_who_is_not_answered_goes_away() -> None:
    """And is no answer, however long the rest goes on."""
    found = crowd([SILENT], patience=0.05)
    assert [one.offered for one in found] == [one.gave_up for one in found]


def test_callers_of_the_top_class_are_counted_apart() -> None:
    """They come as often whatever the others do."""
    found = crowd([GOOD])
    assert [one.critical["due"] for one in found] == [one.critical["answered"] for one in found]
    assert all(0 < one.critical["due"] < one.offered for one in found)


def test_the_same_seed_sends_at_the_same_times() -> None:
    """What is compared has had the same load."""
    assert [one.came for one in crowd([GOOD])] == [one.came for one in crowd([FULL])]


@pytest.mark.parametrize(("slow", "seconds"), [([], 0.0), ([0], 0.1), ([0, 2], 0.3)])
def test_a_server_has_recovered_when_no_window_is_slow_any_more(slow: list[int], seconds: float) -> None:
    """One of ten callers that waits too long is one too many."""
    seen = Seen()
    for window in range(5):
        seen.came[window] = 10
        seen.took[window] = [0.1] * 9 + [0.9 if window in slow else 0.1]
    assert seconds == pytest.approx(recovered_after(seen, 0.2))


def test_who_was_not_answered_was_not_answered_in_time() -> None:
    """A window without an answer is a slow one."""
    seen = Seen()
    seen.came[0] = 10
    assert 0.1 == pytest.approx(recovered_after(seen, 9.0))

"""The progress lines of a command."""

from __future__ import annotations

import io
from collections.abc import Iterator

import pytest

from deploy.tools import terminal
from deploy.tools.terminal import Terminal, table


class Clock:
    """Time that a test moves."""

    now = 0.0

    def monotonic(self) -> float:
        return self.now


class Tty(io.StringIO):
    """A stream that claims to be a terminal."""

    def isatty(self) -> bool:
        return True


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Iterator[Clock]:
    """The clock of new terminals."""
    clock = Clock()
    monkeypatch.setattr(terminal, "time", clock)
    return clock


def test_a_terminal_shows_the_changing_line_in_place_and_takes_it_away(clock: Clock) -> None:
    """A line that stays replaces the changing line."""
    out = Tty()
    screen = Terminal(out)
    screen.live("loading")
    clock.now = 3.0
    screen.say("loaded")
    screen.live("asking")
    screen.clear()
    assert out.getvalue().split("\r\x1b[2K") == [
        "", "[   0.0 s] loading …", "[   3.0 s] loaded\n", "[   3.0 s] asking …", "",
    ]  # fmt: skip


def test_a_log_gets_what_is_waited_for_after_two_quiet_seconds_and_once(clock: Clock) -> None:
    """A pipe gets the line from time to time, not every time."""
    out = io.StringIO()
    screen = Terminal(out)
    for second in range(6):
        clock.now = float(second)
        screen.live("waiting")
    assert out.getvalue() == "[   2.0 s] waiting …\n"


def test_a_log_gets_a_new_topic_at_once_and_its_details_never(clock: Clock) -> None:
    """A log gets each new topic, but no countdown."""
    out = io.StringIO()
    screen = Terminal(out)
    for second in range(9):
        clock.now = float(second)
        screen.live(f"{9 - second} s more", topic="first" if second < 5 else "second")
    assert out.getvalue() == "[   0.0 s] 9 s more …\n[   5.0 s] 4 s more …\n"


def test_what_was_waited_for_leaves_nothing_also_when_it_fails() -> None:
    """The changing line is removed, even if the work fails."""
    out = Tty()

    def fail() -> None:
        with Terminal(out).waiting("reading"):
            raise ValueError

    with pytest.raises(ValueError):
        fail()
    assert out.getvalue().endswith("reading …\r\x1b[2K")


def test_a_closed_stream_keeps_nobody_from_working() -> None:
    """With a closed stream, children must still be stopped."""
    out = io.StringIO()
    screen = Terminal(out)
    out.close()
    screen.say("stopping")
    screen.live("stopping", topic="stopping")


def test_a_table_is_as_wide_as_its_content_also_without_rows() -> None:
    """No column is cut, because programs read tables too."""
    wide, narrow = "x" * 130, "y".ljust(130)
    assert table(["A", "LONG"], [[wide, "1"], ["y", "2"]]) == ["A".ljust(130) + "  LONG", f"{wide}  1", f"{narrow}  2"]
    assert table(["A", "B"], []) == ["A  B"]

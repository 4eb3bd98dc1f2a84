"""The progress lines of a command."""

from __future__ import annotations

import io

import pytest

from deploy.tools import terminal
from deploy.tools.terminal import Terminal, table


class Clock:
    """Time that a test moves."""

    now = 0.0

    def monotonic(self) -> float:
        return self.now


@pytest.mark.parametrize(
    ("topics", "shown"),
    [
        ([""] * 6, ["[   2.0 s] waiting 2 …"]),
        (["a", "a", "a", "b", "b", "b"], ["[   0.0 s] waiting 0 …", "[   3.0 s] waiting 3 …"]),
    ],
    ids=["without a topic", "topics"],
)
def test_what_is_waited_for_is_shown_once_at_once_or_after_two_quiet_seconds(
    topics: list[str], shown: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """No countdown fills a log."""
    clock = Clock()
    monkeypatch.setattr(terminal, "time", clock)
    out = io.StringIO()
    screen = Terminal(out)
    for second, topic in enumerate(topics):
        clock.now = float(second)
        screen.live(f"waiting {second}" if topic or second < 3 else "waiting 2", topic=topic)
    assert shown == out.getvalue().splitlines()
    screen.say("done")
    screen.live("again", topic=topics[-1] or "again")
    assert ["[   5.0 s] done", "[   5.0 s] again …"] == out.getvalue().splitlines()[len(shown) :]


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

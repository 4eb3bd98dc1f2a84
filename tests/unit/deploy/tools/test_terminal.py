"""The progress lines of a command."""

from __future__ import annotations

import io

import pytest

from deploy.tools import terminal
from deploy.tools.terminal import Terminal, table


@pytest.mark.parametrize(
    ("topics", "shown"),
    [
        ([""] * 6, ["[   2.0 s] waiting …"]),
        (["a", "a", "a", "b", "b", "b"], ["[   0.0 s] waiting …", "[   3.0 s] waiting …"]),
    ],
    ids=["without a topic", "topics"],
)
def test_what_is_waited_for_is_shown_once_at_once_or_after_two_quiet_seconds(
    topics: list[str], shown: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """No countdown fills a log."""
    now = [0.0]
    monkeypatch.setattr(terminal.time, "monotonic", lambda: now[0])
    out = io.StringIO()
    screen = Terminal(out)
    for second, topic in enumerate(topics):
        now[0] = float(second)
        screen.live("waiting", topic=topic)
    assert shown == out.getvalue().splitlines()
    screen.say("done")
    screen.live("again", topic=topics[-1] or "again")
    assert ["[   5.0 s] done", "[   5.0 s] again …"] == out.getvalue().splitlines()[len(shown) :]


def test_a_closed_stream_keeps_nobody_from_working() -> None:
    """Children must still be stopped."""
    out = io.StringIO()
    screen = Terminal(out)
    out.close()
    screen.say("stopping")


def test_a_table_is_as_wide_as_its_content() -> None:
    """No column is cut, because programs read tables too."""
    assert ["A     LONG", "wide  1", "y     2"] == table(["A", "LONG"], [["wide", "1"], ["y", "2"]])

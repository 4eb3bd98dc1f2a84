"""What a command prints while it works."""

from __future__ import annotations

import io

from deploy.tools.terminal import Terminal


def test_a_closed_stream_keeps_nobody_from_working() -> None:
    """Children must still be stopped."""
    out = io.StringIO()
    screen = Terminal(out)
    out.close()
    screen.say("stopping")

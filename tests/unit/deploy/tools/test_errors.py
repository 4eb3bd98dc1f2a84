"""An error of somebody else's code is told in one line."""

from __future__ import annotations

from deploy.tools.errors import first_line


def test_a_heading_is_told_with_what_stands_below_it() -> None:
    """It announces the reason."""
    assert "Missing files: a.bin" == first_line(OSError("Missing files:\n  a.bin\n  b.bin"))

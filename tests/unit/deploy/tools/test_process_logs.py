"""The line of a log that explains why its process ended."""

from __future__ import annotations

import pytest

from deploy.tools import process_logs


@pytest.mark.parametrize(
    ("log", "line"),
    [
        ("Traceback (most recent call last):\n  File x\nValueError: no such port\n", "ValueError: no such port"),
        ("starting\nERROR: bind failed\nshutting down\n", "ERROR: bind failed"),
        ("2026-01-01 10:00:00 INFO no error\nAddress  already in use\n\n", "Address already in use"),
        ("one\ntwo\n", "two"),
        (
            "E0101 10:00:00.1 x.cc] bind: in use\nI0101 10:00:00.2 x.cc] no error\n",
            "E0101 10:00:00.1 x.cc] bind: in use",
        ),
        ("", ""),
        ("error " * 100, ("error " * 100)[:239] + "…"),
    ],
)
def test_last_error_line_says_why(log: str, line: str) -> None:
    """The last line that looks like an error is shown, otherwise the last line."""
    assert line == process_logs.last_error_line(log)


def test_last_line_that_is_no_error_can_be_left_out() -> None:
    """The last line of a killed process does not explain why it was killed."""
    assert process_logs.last_error_line("INFO all is well\n", otherwise_last=False) == ""

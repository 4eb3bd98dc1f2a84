"""What is read from the operating system."""

from __future__ import annotations

import os
import time

from benchmarks.shared.machine import (
    Stat,
    cpu_seconds,
    parse_stat,
    rss_mb,
    thread_seconds,
    tree,
)

_LINE = (
    "12 (a name) of) S 7 12 12 0 -1 4194560 9 0 0 0 150 50 20 30 20 0 3 0 100 999 25 18446744073709551615 0 0 0 0 0 0 "
    "0 0 0 0 0 0 17 1 0 0 0 0 0"
)


def test_a_stat_line_is_read_past_any_name() -> None:
    """Names hold spaces and brackets; children that ended count."""
    assert Stat(7, 2.5, 25 * 4096) == parse_stat(_LINE, ticks=100)


def test_a_tree_is_the_roots_and_all_below() -> None:
    """Each process once, whatever the order; a root that is gone is no error."""
    stats = {pid: Stat(parent, 0.0, 0) for pid, parent in {1: 0, 2: 1, 3: 2, 4: 1, 9: 0}.items()}
    assert [1, 2, 3, 4] == sorted(tree([1, 2], stats))
    assert [] == tree([77], stats)


def test_own_cpu_time_grows() -> None:
    """This process is in its own tree."""
    before = cpu_seconds([os.getpid()])
    until = time.process_time() + 0.05
    while time.process_time() < until:
        pass
    assert cpu_seconds([os.getpid()]) > before
    assert rss_mb([os.getpid()]) > 1
    assert any(thread == os.getpid() for thread, _ in thread_seconds(os.getpid()))

"""Rules of what is remembered about a client's reads."""

# ruff: noqa: D103 - a test's name states its rule

from typing import Any

from deploy.controlplane.reads import HORIZON_S, MAX_READS, MAX_TRACKED, ReadLog


class Time:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        self.now += 0.001
        return self.now


def runtime(doc: Any) -> Any:
    return doc["runtime"]


def see(log: ReadLog, session: str, *values: int) -> None:
    for value in values:
        log.saw(session, "task", value, {"runtime": value})


def test_client_that_keeps_a_copy_may_have_started_from_any_read() -> None:
    log = ReadLog(monotonic=Time())
    see(log, "s", 1, 2, 3)
    assert log.bases("s", "task", "runtime", runtime, keeps_copy=True) == [1, 2, 3]


def test_other_clients_started_from_one_of_their_last_two_reads() -> None:
    log = ReadLog(monotonic=Time())
    see(log, "s", 1, 2, 3)
    assert log.bases("s", "task", "runtime", runtime, keeps_copy=False) == [2, 3]


def test_what_a_client_wrote_replaces_what_it_read_before() -> None:
    log = ReadLog(monotonic=Time())
    see(log, "s", 1, 2)
    log.wrote("s", "task", "runtime", 7)
    assert log.bases("s", "task", "runtime", runtime, keeps_copy=True) == [7]
    see(log, "s", 3)
    assert log.bases("s", "task", "runtime", runtime, keeps_copy=True) == [7, 3]


def test_sessions_and_tasks_are_apart() -> None:
    log = ReadLog(monotonic=Time())
    see(log, "s", 1)
    assert log.bases("t", "task", "runtime", runtime, keeps_copy=True) == []
    assert log.bases("s", "other", "runtime", runtime, keeps_copy=True) == []
    assert log.bases(None, "task", "runtime", runtime, keeps_copy=True) == []
    assert log.last("t", "task") is None


def test_copies_beyond_the_horizon_are_forgotten_but_not_the_last_read() -> None:
    clock = Time()
    log = ReadLog(monotonic=clock)
    see(log, "s", 1, 2)
    clock.now += HORIZON_S
    assert log.bases("s", "task", "runtime", runtime, keeps_copy=True) == [2]


def test_memory_is_bounded_and_keeps_first_and_last_reads() -> None:
    log = ReadLog(monotonic=Time())
    see(log, "s", *range(1000))
    kept = log.bases("s", "task", "runtime", runtime, keeps_copy=True)
    assert (len(kept), kept[0], kept[-1]) == (MAX_READS, 0, 999)


def test_least_recently_used_session_is_forgotten_first() -> None:
    log = ReadLog(monotonic=Time())
    for number in range(MAX_TRACKED + 1):
        see(log, str(number), 1)
    assert log.last("0", "task") is None
    assert log.last("1", "task") is not None


def test_removed_task_is_forgotten() -> None:
    log = ReadLog(monotonic=Time())
    see(log, "s", 1)
    log.forget("task")
    assert log.last("s", "task") is None


def test_state_read_twice_is_what_a_client_writes_from() -> None:
    """It was looked at, and read again right before the write: what was read before it does not count."""
    log = ReadLog(monotonic=Time())
    see(log, "s", 1, 2, 2)
    assert log.bases("s", "task", "runtime", runtime, keeps_copy=False) == [2]

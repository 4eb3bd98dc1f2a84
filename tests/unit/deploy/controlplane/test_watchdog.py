"""Silent Tasks in progress are stopped, as a ClearML server does; pinged ones and others are left alone."""

# ruff: noqa: D103 - a test's name states its rule

from datetime import UTC, datetime, timedelta
from pathlib import Path

from deploy.controlplane.clock import Clock
from deploy.controlplane.testing import in_process
from deploy.controlplane.watchdog import REASON, Watchdog


class At(Clock):
    """A clock that tests turn."""

    def __init__(self) -> None:
        super().__init__()
        self.time = datetime.now(UTC)

    def now(self) -> datetime:
        return self.time


def test_a_task_in_progress_is_stopped_after_the_silence_and_no_other(tmp_path: Path) -> None:
    with in_process(tmp_path) as server:
        clock = At()
        watchdog = Watchdog(store=server.store, clock=clock, silence_s=7200)
        silent, created, done = server.task(), server.task(), server.task()
        server.call("tasks.started", task=silent)
        server.call("tasks.started", task=done)
        server.call("tasks.completed", task=done)
        clock.time += timedelta(seconds=7000)
        assert watchdog.sweep() == []
        clock.time += timedelta(seconds=300)
        assert watchdog.sweep() == [silent]
        stopped = server.get(silent)
        assert (stopped["status"], stopped["status_message"]) == ("stopped", REASON)
        assert stopped["last_changed_by"] == "__apiserver__"
        assert [server.get(task)["status"] for task in (created, done)] == ["created", "completed"]
        assert watchdog.sweep() == []


def test_a_ping_an_edit_and_an_event_are_signs_of_life(tmp_path: Path) -> None:
    with in_process(tmp_path) as server:
        tasks = [server.task() for _ in range(3)]
        for task in tasks:
            server.call("tasks.started", task=task)
        clock = At()
        watchdog = Watchdog(store=server.store, clock=clock, silence_s=1e-6)
        server.call("tasks.ping", task=tasks[0])
        server.call("tasks.edit", task=tasks[1], force=True, runtime={"progress": "1"})
        server.add_events({"type": "log", "task": tasks[2], "msg": "alive"})
        assert watchdog.sweep() == []
        # renaming a Task is somebody's order, no sign of life: ClearML leaves `last_update` alone too
        clock.time = datetime.now(UTC) + timedelta(seconds=1)
        server.call("tasks.edit", task=tasks[1], force=True, comment="silent")
        assert sorted(watchdog.sweep()) == sorted(tasks)

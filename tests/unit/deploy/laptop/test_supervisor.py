"""The supervisor with stand-in children: small Python programs that become ready, die, hang or ignore signals."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from deploy.laptop.supervisor import (
    ChildSpec,
    Event,
    HangTimeouts,
    Lifecycle,
    Phase,
    Restarts,
    Supervisor,
    end_leftovers,
    read_record,
)
from deploy.tools import process_family
from deploy.tools.errors import ChildFailed

FAST = Restarts(first=0.01, ceiling=0.05)

READY = "import os, signal, sys, time; open(sys.argv[1], 'w').write(str(os.getpid()))\n"
SERVES = READY + "time.sleep(600)"
IGNORES_TERM = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN)\n" + SERVES
HAS_A_WORKER = (
    "import subprocess, sys; subprocess.Popen([sys.executable, '-c', "
    "'import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(600)'])\n" + SERVES
)
HAS_A_SESSION = (
    "import subprocess, sys; subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'], "
    "start_new_session=True)\n" + SERVES
)
DIES_AT_START = "import sys; print('OSError: [Errno 98] Address already in use', file=sys.stderr); sys.exit(3)"


class Stand:
    """A supervisor in a temporary folder, its events, and children that write their id when they are ready."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.events: list[Event] = []
        self.changed = asyncio.Event()
        self.supervisor = Supervisor(
            logs=folder / "logs", record=folder / "children.json", report=self._note, restarts=FAST, watch_every=0.02
        )

    def _note(self, event: Event) -> None:
        self.events.append(event)
        self.changed.set()

    def spec(self, name: str, code: str, **options: float) -> ChildSpec:
        mark = self.folder / f"{name}.pid"

        async def probe() -> bool:
            return mark.exists() and is_alive(int(mark.read_text() or 0))

        return ChildSpec(name, (sys.executable, "-S", "-c", code, str(mark)), dict(os.environ), probe, **options)

    def pid(self, name: str) -> int:
        return int((self.folder / f"{name}.pid").read_text())

    async def event(self, kind: str, count: int = 1) -> Event:
        """Wait for the nth event of a kind."""
        while len(found := [e for e in self.events if e.kind == kind]) < count:
            self.changed.clear()
            await self.changed.wait()
        return found[count - 1]


@pytest.fixture
async def stand(tmp_path: Path) -> AsyncIterator[Stand]:
    """A supervisor whose children are always ended after the test."""
    one = Stand(tmp_path)
    yield one
    one.supervisor.hurry()
    await one.supervisor.stop()


def is_alive(pid: int) -> bool:
    """Return True if a process runs; a zombie has ended."""
    with contextlib.suppress(psutil.NoSuchProcess):
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    return False


async def until(fact: Callable[[], bool]) -> None:
    """Wait until a condition is true; the test's own timeout is the limit."""
    while not fact():
        await asyncio.sleep(0.01)


# --- the pure part


def test_wait_doubles_up_to_the_ceiling() -> None:
    """A child that keeps dying is restarted less and less often, but always again."""
    restarts = Restarts(first=0.5, ceiling=30)
    assert [restarts.delay(n) for n in range(1, 9)] == [0.5, 1, 2, 4, 8, 16, 30, 30]
    assert restarts.delay(10_000) == 30


def test_death_before_first_readiness_is_a_failure() -> None:
    """A child that never worked is not restarted: its configuration is wrong."""
    assert Lifecycle().started(0).died(1, FAST).phase is Phase.FAILED


def test_death_after_readiness_waits_to_restart() -> None:
    """A child that has worked is restarted."""
    lifecycle = Lifecycle().started(0).answered(1).died(2, Restarts(first=0.5))
    assert (lifecycle.phase, lifecycle.deaths, lifecycle.restart_in) == (Phase.WAITING, 1, 0.5)


def test_deaths_in_a_row_count_until_a_calm_period() -> None:
    """A minute of work resets the count of deaths, a second does not."""
    restarts = Restarts(first=1, calm=60)
    lifecycle = Lifecycle().started(0).answered(0).died(1, restarts).started(2).answered(2).died(3, restarts)
    assert (lifecycle.deaths, lifecycle.restart_in) == (2, 2.0)
    lifecycle = lifecycle.started(5).answered(5).died(65, restarts)
    assert (lifecycle.deaths, lifecycle.restart_in) == (1, 1.0)


def test_death_while_restarting_keeps_the_count() -> None:
    """A restarted child that dies before it is ready counts as one more death, not as a failure of `up`."""
    lifecycle = Lifecycle().started(0).answered(0).died(1, FAST).started(2).died(3, FAST)
    assert (lifecycle.phase, lifecycle.deaths) == (Phase.WAITING, 2)


def test_stopping_child_is_not_restarted() -> None:
    """The end of a child that is being stopped is expected."""
    lifecycle = Lifecycle().started(0).answered(0).told_to_stop(1)
    assert lifecycle.phase is Phase.STOPPING
    assert lifecycle.died(2, FAST).phase is Phase.STOPPED
    assert lifecycle.died(2, FAST).started(3).phase is Phase.STOPPED


def test_waiting_child_stops_at_once() -> None:
    """A child without a process is stopped at once."""
    assert Lifecycle().started(0).answered(0).died(1, FAST).told_to_stop(2).phase is Phase.STOPPED


# --- with processes


async def test_child_is_ready_when_its_probe_says_so(stand: Stand) -> None:
    """`start` returns when the child works; it leads its own process group and writes to its log."""
    await stand.supervisor.start(stand.spec("a", "print('hello', flush=True)\n" + SERVES))
    assert stand.supervisor.phases() == {"a": Phase.READY}
    assert stand.pid("a") == os.getpgid(stand.pid("a"))
    assert "hello" in (stand.folder / "logs" / "a.log").read_text()


async def test_child_that_dies_at_start_fails_with_its_reason(stand: Stand) -> None:
    """The error names the child, its exit code, its last error line and its log, in one line."""
    with pytest.raises(ChildFailed) as caught:
        await stand.supervisor.start(stand.spec("a", DIES_AT_START))
    line = caught.value.line()
    assert "a died (exit code 3): OSError: [Errno 98] Address already in use" in line
    assert str(stand.folder / "logs" / "a.log") in line
    assert "\n" not in line


async def test_child_that_never_works_is_ended(stand: Stand) -> None:
    """A start that takes too long fails, and no process stays."""
    spec = stand.spec("a", "import time; time.sleep(600)", ready_timeout=0.3)
    with pytest.raises(ChildFailed, match="did not work within"):
        await stand.supervisor.start(spec)
    assert stand.supervisor.pids() == {}


async def test_program_that_does_not_exist_fails_clearly(stand: Stand) -> None:
    """A missing program is named."""
    spec = stand.spec("a", SERVES)
    with pytest.raises(ChildFailed, match="/no/such/program"):
        await stand.supervisor.start(ChildSpec("a", ("/no/such/program",), {}, spec.probe))


async def test_dead_child_is_restarted_and_said_so(stand: Stand) -> None:
    """One line says which child died and how, the next one that it is back."""
    await stand.supervisor.start(stand.spec("a", SERVES))
    before = stand.pid("a")
    os.kill(before, signal.SIGKILL)
    died = await stand.event("died")
    assert "killed by SIGKILL" in died.text
    assert "restarting in" in died.text
    await stand.event("ready")
    assert before != stand.pid("a")
    assert stand.supervisor.phases() == {"a": Phase.READY}


async def test_a_child_is_back_when_it_works_again(stand: Stand) -> None:
    """Not when it answers: a restarted Triton is live before it has a model."""
    asked, may_work = asyncio.Event(), False

    async def works() -> bool:
        asked.set()
        return may_work

    await stand.supervisor.start(replace(stand.spec("a", SERVES), works=works))
    assert not asked.is_set()
    os.kill(stand.pid("a"), signal.SIGKILL)
    await asked.wait()
    asked.clear()
    await asked.wait()
    assert {"a": Phase.READY} == stand.supervisor.phases()
    assert "ready" not in [event.kind for event in stand.events]
    may_work = True
    assert "is back after" in (await stand.event("ready")).text


async def test_workers_of_a_dead_child_go_with_it(stand: Stand) -> None:
    """The rest of a dead child's group would keep its port, so it is ended before the restart."""
    await stand.supervisor.start(stand.spec("a", HAS_A_WORKER))
    group = stand.pid("a")
    await until(lambda: len(process_family.members(group)) == 2)
    os.kill(group, signal.SIGKILL)
    await stand.event("ready")
    assert process_family.members(group) == []


async def test_members_in_a_session_of_their_own_go_too(stand: Stand) -> None:
    """A server in a session of its own still belongs to the family."""
    await stand.supervisor.start(stand.spec("a", HAS_A_SESSION))
    mark = read_record(stand.folder / "children.json")["a"]["mark"]
    await until(lambda: len(process_family.members(stand.pid("a"), mark)) == 2)
    assert len(process_family.members(stand.pid("a"))) == 1
    os.kill(stand.pid("a"), signal.SIGKILL)
    await stand.event("ready")
    assert process_family.members(-1, mark) == []


async def test_child_that_dies_again_and_again_is_kept_trying(stand: Stand) -> None:
    """Every death is reported, and the supervisor does not give up."""
    flag = stand.folder / "broken"
    code = f"import os, sys\nif os.path.exists({str(flag)!r}): sys.exit('broken: error 7')\n" + SERVES
    await stand.supervisor.start(stand.spec("a", code))
    flag.touch()
    os.kill(stand.pid("a"), signal.SIGKILL)
    third = await stand.event("died", 3)
    assert "died (exit code 1): broken: error 7" in third.text
    flag.unlink()
    await stand.event("ready")


async def test_silent_child_is_reported_not_killed(stand: Stand) -> None:
    """A child that does not answer is reported once, and once more when it answers again."""
    answering = True
    spec = stand.spec("a", SERVES)

    async def probe() -> bool:
        return answering and await spec.probe()

    await stand.supervisor.start(ChildSpec(spec.name, spec.argv, spec.env, probe))
    pid, answering = stand.pid("a"), False
    await stand.event("silent")
    answering = True
    await stand.event("answers")
    assert {"a": pid} == stand.supervisor.pids()


def test_a_child_that_stands_still_is_given_up_before_one_that_is_busy() -> None:
    """The time without an answer and the CPU time used in it decide; both limits are generous."""
    hang_timeouts = HangTimeouts()
    assert not hang_timeouts.are_over(14.0, 0.0)
    assert hang_timeouts.are_over(15.0, 0.0)
    assert not hang_timeouts.are_over(59.0, 20.0)
    assert hang_timeouts.are_over(60.0, 60.0)
    assert min(hang_timeouts.idle, hang_timeouts.busy) >= 10


async def test_hung_child_is_replaced_like_a_dead_one(stand: Stand) -> None:
    """A stopped child is replaced; its probe ends at its own deadline."""
    stand.supervisor.hang_timeouts = HangTimeouts(idle=0.2, busy=60.0)
    await stand.supervisor.start(stand.spec("a", SERVES))
    before = stand.pid("a")
    os.kill(before, signal.SIGSTOP)
    died = await stand.event("died")
    assert "gave no answer for" in died.text
    assert "was killed; restarting in" in died.text
    await stand.event("ready")
    assert before != stand.pid("a")
    assert not is_alive(before)


async def test_child_that_is_busy_is_given_longer(stand: Stand) -> None:
    """A child that uses CPU but does not answer is reported, and replaced only after the longer limit."""
    stand.supervisor.hang_timeouts = HangTimeouts(idle=0.2, busy=3600.0)
    answers = [True]

    async def probe() -> bool:
        return answers[0]

    code = READY + "while True: pass"
    await stand.supervisor.start(replace(stand.spec("a", code), probe=probe))
    before = stand.supervisor.pids()["a"]
    answers[0] = False
    await stand.event("silent")
    await asyncio.sleep(1.0)  # for what must not happen there is nothing else to wait for
    answers[0] = True
    await stand.event("answers")
    assert before == stand.supervisor.pids()["a"]
    stand.supervisor.hang_timeouts = HangTimeouts(idle=0.2, busy=0.4)
    answers[0] = False
    await stand.event("died")


@pytest.mark.long
async def test_child_whose_worker_is_replaced_is_not_taken_for_one_that_stands_still(stand: Stand) -> None:
    """A worker that ends takes its CPU seconds out of the sum; the CPU time of the others still counts."""
    stand.supervisor.hang_timeouts = HangTimeouts(idle=0.4, busy=3600.0)
    answers = [True]

    async def probe() -> bool:
        return answers[0]

    burns = (
        "import subprocess, sys\nsubprocess.Popen([sys.executable, '-S', '-c', 'while True: pass'], "
        "start_new_session=True)\n"
    )
    await stand.supervisor.start(replace(stand.spec("a", burns + READY + "while True: pass"), probe=probe))
    leader = stand.supervisor.pids()["a"]
    mark = read_record(stand.folder / "children.json")["a"]["mark"]
    await until(lambda: len(process_family.members(leader, mark)) == 2)
    worker = next(pid for pid in process_family.members(leader, mark) if pid != leader)
    await until(lambda: process_family.cpu_seconds(worker, "") >= 1.5)
    answers[0] = False
    await stand.event("silent")
    os.kill(worker, signal.SIGKILL)
    await asyncio.sleep(1.0)  # for what must not happen there is nothing else to wait for
    assert [] == [event.text for event in stand.events if event.kind == "died"]
    answers[0] = True
    await stand.event("answers")
    assert [leader] == [*stand.supervisor.pids().values()]


async def test_child_at_its_start_is_not_judged(stand: Stand) -> None:
    """It may use all of its start time."""
    stand.supervisor.hang_timeouts = HangTimeouts(idle=0.0, busy=0.0)
    slow = "import time; time.sleep(1)\n" + SERVES
    await stand.supervisor.start(stand.spec("a", slow))
    assert [] == [event for event in stand.events if event.kind == "died"]


async def test_child_is_restarted_where_nothing_can_be_written(stand: Stand) -> None:
    """On a full disk neither record nor log can be written, but the child is restarted."""
    await stand.supervisor.start(stand.spec("a", SERVES))
    before = stand.pid("a")
    stand.supervisor.record = stand.folder / "no-such-folder" / "children.json"
    (stand.folder / "logs" / "a.log").unlink()
    (stand.folder / "logs" / "a.log").mkdir()
    os.kill(before, signal.SIGKILL)
    await stand.event("ready")
    assert before != stand.pid("a")


async def test_child_that_may_come_later_is_tried_until_it_works(stand: Stand) -> None:
    """`start` returns at once and says that the child does not work yet."""
    flag = stand.folder / "broken"
    flag.touch()
    code = f"import os, sys\nif os.path.exists({str(flag)!r}): sys.exit('broken: no room')\n" + SERVES
    assert await stand.supervisor.start(stand.spec("a", code), or_later=True) is None
    assert "broken: no room" in (await stand.event("died")).text
    flag.unlink()
    await stand.event("ready")
    assert Phase.READY is stand.supervisor.phases()["a"]


async def test_children_stop_in_reverse_order(stand: Stand) -> None:
    """The last started child stops first, and no process is left in any group."""
    for name in "abc":
        await stand.supervisor.start(stand.spec(name, SERVES))
    groups = [stand.pid(name) for name in "abc"]
    await stand.supervisor.stop()
    assert [e.child for e in stand.events if e.kind == "stopped"] == ["c", "b", "a"]
    assert [process_family.members(group) for group in groups] == [[], [], []]
    assert not (stand.folder / "children.json").exists()


async def test_child_that_ignores_the_signal_is_killed_after_its_grace(stand: Stand) -> None:
    """Stopping is bounded."""
    await stand.supervisor.start(stand.spec("a", IGNORES_TERM, stop_grace=0.2))
    await stand.supervisor.stop()
    assert "killed" in [e.kind for e in stand.events]
    assert process_family.members(stand.pid("a")) == []


async def test_hurry_cuts_the_grace_short(stand: Stand) -> None:
    """After a second Ctrl-C no grace is waited for."""
    await stand.supervisor.start(stand.spec("a", IGNORES_TERM, stop_grace=3600))
    stopping = asyncio.create_task(stand.supervisor.stop())
    await until(lambda: stand.supervisor.phases() == {"a": Phase.STOPPING})
    stand.supervisor.hurry()
    await stopping
    assert process_family.members(stand.pid("a")) == []


async def test_stop_during_a_restart_leaves_nothing(stand: Stand) -> None:
    """A child that waits for its restart is not restarted."""
    stand.supervisor.restarts = Restarts(first=3600, ceiling=3600)
    await stand.supervisor.start(stand.spec("a", SERVES))
    os.kill(stand.pid("a"), signal.SIGKILL)
    await stand.event("died")
    await stand.supervisor.stop()
    assert stand.supervisor.phases() == {"a": Phase.STOPPED}


async def test_stop_while_starting_ends_the_child(stand: Stand) -> None:
    """After Ctrl-C during the start, no child is left."""
    spec = stand.spec("a", "import time; time.sleep(600)")
    starting = asyncio.create_task(stand.supervisor.start(spec))
    await until(lambda: bool(stand.supervisor.pids()))
    (pid,) = stand.supervisor.pids().values()
    starting.cancel()
    await asyncio.wait({starting})
    await stand.supervisor.stop()
    assert process_family.members(pid) == []


async def test_running_children_are_on_record(stand: Stand) -> None:
    """The record names each running process by its id and its family's mark."""
    await stand.supervisor.start(stand.spec("a", SERVES))
    pid = stand.pid("a")
    record = read_record(stand.folder / "children.json")
    assert record["a"]["pid"] == pid
    assert process_family.carries(pid, record["a"]["mark"])
    assert process_family.members(-1, record["a"]["mark"]) == [pid]


async def test_leftovers_of_a_killed_supervisor_are_ended(stand: Stand) -> None:
    """The next start finds and ends them."""
    await stand.supervisor.start(stand.spec("a", SERVES))
    copy = stand.folder / "copy.json"
    copy.write_text((stand.folder / "children.json").read_text())
    stand.supervisor.restarts = Restarts(first=3600, ceiling=3600)
    assert await end_leftovers(copy) == ["a"]
    assert process_family.members(stand.pid("a")) == []


async def test_stranger_with_a_recycled_id_is_left_alone(tmp_path: Path) -> None:
    """An id on record that now belongs to another process is not touched."""
    record = tmp_path / "children.json"
    record.write_text(
        json.dumps(
            {
                "a": {"pid": os.getpid(), "mark": "x"},
                "b": {"pid": 2**22 + 1, "mark": "y"},
            }
        )
    )
    assert await end_leftovers(record) == []


async def test_damaged_record_is_no_record(tmp_path: Path) -> None:
    """A half-written record does not stop a start."""
    record = tmp_path / "children.json"
    record.write_text('{"a": {"pid"')
    assert await end_leftovers(record) == []


def test_children_end_when_the_supervisor_is_killed(tmp_path: Path) -> None:
    """After SIGKILL the supervisor cannot stop its children, so the kernel signals them."""
    code = f"""
import asyncio, os, sys
from pathlib import Path
from deploy.tools import processes
async def main():
    child = await processes.spawn([sys.executable, "-c", "import time; time.sleep(600)"], env=dict(os.environ),
                                  log=Path({str(tmp_path / "log")!r}))
    print(child.pid, flush=True)
    await child.wait()
asyncio.run(main())
"""
    parent = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    child = int(parent.stdout.readline())
    assert is_alive(child)
    parent.kill()
    parent.wait()
    parent.stdout.close()
    while is_alive(child):
        pass

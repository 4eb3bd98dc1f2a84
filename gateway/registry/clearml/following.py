"""Chooses the serving Task to follow, and decides when the server must hear that it is followed. Pure.

``registry/clearml`` calls it. ClearML's watchdog stops a running Task that was silent for two hours (a real server's
default), and then the stock tools do not find it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, Literal

from gateway.errors import RegistryRefused

TAG: Final = "serving-control-plane"
"""System tag of a serving Task."""
PING_S: Final = 300.0
"""A Task that was silent for this long is pinged; clearml-serving pings every 5 minutes."""
RETRY_S: Final = 60.0
"""Pause after a ping, and after an attempt to reopen a Task."""
SILENCED: Final = "forced stop (non-responsive)"
"""The status message of a Task that the watchdog stopped, in lower case; the SDK also goes by it."""

_RUNNING: Final = ("created", "in_progress")


def choose(tasks: Sequence[Mapping[str, Any]]) -> Mapping[str, Any]:
    """Return the serving Task to follow if no id was given.

    ``tasks`` are all serving Tasks, with ``id``, ``name``, ``status``, ``status_message`` and ``system_tags``. Archived
    Tasks and Tasks stopped by a person are skipped; those stopped by the watchdog are not. Raises ``RegistryRefused``,
    with names and ids, unless exactly one remains: a guess could serve the wrong models.
    """
    present = [task for task in tasks if "archived" not in (task.get("system_tags") or ())]
    running = [task for task in present if task.get("status") in _RUNNING or is_silenced(task)]
    if len(running) == 1:
        return running[0]
    if running:
        named = ", ".join(sorted(f"{task.get('name')!r} ({task.get('id')})" for task in running))
        raise RegistryRefused(
            f"there are {len(running)} serving services, and nothing says which one to follow: {named}",
            hint="set CLEARML_SERVING_TASK_ID (or --serving-task-id) to the id of one of them",
        )
    raise RegistryRefused(
        "no serving service is running",
        hint="create one with `clearml-serving create --name NAME`, then set CLEARML_SERVING_TASK_ID; with its id, one "
        "that was stopped is followed all the same",
    )


def is_silenced(task: Mapping[str, Any]) -> bool:
    """Whether the watchdog stopped this Task, rather than a person."""
    said = (str(task.get(name) or "").strip().lower() for name in ("status_message", "status_reason"))
    return task.get("status") == "stopped" and SILENCED in said


class Heartbeat:
    """Decides when to ping or reopen the Task, from what each look at it shows.

    Every follower looks at the Task. The first one that sees it silent for ``PING_S`` pings; the others see the ping,
    so the number of pings does not grow with theirs. ``clock`` returns seconds.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._heard = ""
        self._due = 0.0
        self._reopen_due = 0.0

    def due(self, task: Mapping[str, Any]) -> Literal["", "ping", "reopen"]:
        """Return what to do now. ``task`` needs ``last_update``, ``status`` and the status's texts."""
        now = self._clock()
        if is_silenced(task):
            if now < self._reopen_due:
                return ""
            self._reopen_due = now + RETRY_S
            return "reopen"
        heard = str(task.get("last_update"))
        if heard != self._heard:
            self._heard, self._due = heard, now + PING_S
        if now < self._due:
            return ""
        # A failed ping leaves the Task silent: try again, but not with every look.
        self._due = now + RETRY_S
        return "ping"

"""Which serving Task is followed, and when it has to hear that somebody follows it. Pure: values in, decisions out.

Asked by ``registry/clearml``. ClearML's watchdog stops a running Task of which nothing was heard for two hours (a
real server's defaults), and the stock tools then neither list nor find it.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, Literal

from gateway.errors import RegistryRefused

TAG: Final = "serving-control-plane"
"""System tag of a serving Task."""
PING_S: Final = 300.0
"""After so long a silence, and up to a fifth more, the Task is pinged: clearml-serving pings at every poll of 5 min."""
RETRY_S: Final = 60.0
SILENCED: Final = "forced stop (non-responsive)"
"""What the watchdog writes into the status of a Task it stops, in lower case; the SDK knows it by this too."""

_RUNNING: Final = ("created", "in_progress")
_MAX_NAMED: Final = 10


def choose(tasks: Sequence[Mapping[str, Any]]) -> Mapping[str, Any]:
    """Return the one serving Task that is meant if no id was given.

    ``tasks``: every serving Task with ``id``, ``name``, ``status``, ``status_message`` and ``system_tags``. Archived
    ones and those that somebody stopped do not count; one that the watchdog stopped does.
    Raises ``RegistryRefused``, with names and ids, unless there is exactly one: a guess would serve other models.
    """
    present = [task for task in tasks if "archived" not in (task.get("system_tags") or ())]
    running = [task for task in present if task.get("status") in _RUNNING or is_silenced(task)]
    if len(running) == 1:
        return running[0]
    if running:
        raise RegistryRefused(
            f"there are {len(running)} serving services, and nothing says which one to follow: {_named(running)}",
            hint="set CLEARML_SERVING_TASK_ID (or --serving-task-id) to the id of one of them",
        )
    if present:
        raise RegistryRefused(
            f"no serving service is running; there is {_named(present)}",
            hint="set CLEARML_SERVING_TASK_ID to follow one of them all the same, or create another with "
            "`clearml-serving create --name NAME`",
        )
    raise RegistryRefused(
        "no serving service exists yet",
        hint="create one with `clearml-serving create --name NAME`, then set CLEARML_SERVING_TASK_ID",
    )


def is_silenced(task: Mapping[str, Any]) -> bool:
    """Say whether the watchdog stopped this Task, rather than a person."""
    said = (str(task.get(name) or "").strip().lower() for name in ("status_message", "status_reason"))
    return task.get("status") == "stopped" and SILENCED in said


def _named(tasks: Sequence[Mapping[str, Any]]) -> str:
    shown = sorted(tasks, key=lambda task: (str(task.get("name")), str(task.get("id"))))[:_MAX_NAMED]
    states = (task.get("status") for task in shown)
    names = [
        f"{task.get('name')!r} ({task.get('id')}{'' if state in _RUNNING else f', {state}'})"
        for task, state in zip(shown, states, strict=True)
    ]
    return ", ".join(names) + (f" and {len(tasks) - len(shown)} more" if len(tasks) > len(shown) else "")


class Heartbeat:
    """Says when the Task has to be pinged or opened again, given what each look at it shows.

    Everybody who follows it looks; whoever first finds that nothing was heard for ``PING_S`` pings, which the others
    see, so the number of calls does not grow with theirs. ``clock`` counts seconds; ``chance`` is a number in [0, 1)
    that keeps processes which started together from pinging together.
    """

    def __init__(self, clock: Callable[[], float], *, chance: Callable[[], float] = random.random) -> None:
        self._clock = clock
        self._chance = chance
        self._heard = ""
        self._due = 0.0
        self._reopen_due = 0.0

    def due(self, task: Mapping[str, Any]) -> Literal["", "ping", "reopen"]:
        """Return what to do now; ``task`` has ``last_update``, ``status`` and the status's texts."""
        now = self._clock()
        if is_silenced(task):
            if now < self._reopen_due:
                return ""
            self._reopen_due = now + RETRY_S
            return "reopen"
        heard = str(task.get("last_update"))
        if heard != self._heard:
            self._heard, self._due = heard, now + PING_S * (1 + 0.2 * self._chance())
        if now < self._due:
            return ""
        # A ping that fails changes nothing that is heard: it is tried again, and not at every look.
        self._due = now + RETRY_S
        return "ping"

"""Stops Tasks in progress whose process no longer reports, like a ClearML server does after two hours.

`server` calls it at intervals. A ping, an edit or an event counts as a report.
"""

from datetime import timedelta

from deploy.controlplane.api import projects, tasks
from deploy.controlplane.clock import Clock
from deploy.controlplane.store import Store

REASON = "Forced stop (non-responsive)"


class Watchdog:
    """Checks all Tasks. A Task may be silent for at most `silence_s` seconds."""

    def __init__(self, *, store: Store, clock: Clock, silence_s: float) -> None:
        self._store = store
        self._clock = clock
        self._silence = timedelta(seconds=silence_s)

    def sweep(self) -> list[str]:
        """Stop silent Tasks; return their ids."""
        before = (self._clock.now() - self._silence).isoformat(timespec="microseconds")
        stopped: list[str] = []
        with self._store.write() as tx:
            for doc in list(tx.scan(tasks.KIND)):
                if doc["status"] != "in_progress" or doc["last_update"] >= before:
                    continue
                now = self._clock.stamp()
                tx.put(
                    tasks.KIND,
                    doc
                    | {
                        "status": "stopped",
                        "status_reason": REASON,
                        "status_message": REASON,
                        "status_changed": now,
                        "last_update": now,
                        "last_change": now,
                        "last_changed_by": "__apiserver__",
                    },
                )
                projects.touch(tx, doc.get("project"), now)
                stopped.append(doc["id"])
        return stopped

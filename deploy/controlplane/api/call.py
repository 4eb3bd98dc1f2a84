"""One API call as handlers see it. `app` builds it inside a transaction; a handler returns the reply's `data`."""

import secrets
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

from deploy.controlplane.access import Identity
from deploy.controlplane.envelope import JsonObject, missing_fields
from deploy.controlplane.store import Transaction


class Clock:
    """UTC wall-clock time that never repeats and never goes back within a process. Thread-safe.

    Clients poll `last_change` to see whether a Task was edited, so two edits within one tick must differ.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._last = datetime.min.replace(tzinfo=UTC)

    def now(self) -> datetime:
        """The current time, later than every earlier answer."""
        with self._lock:
            self._last = max(datetime.now(UTC), self._last + timedelta(microseconds=1))
            return self._last


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """The checked body of one call, its sender, and the transaction in which it is answered.

    `lines` are the objects of a JSON-lines body (`events.add_batch`).
    """

    identity: Identity
    tx: Transaction
    clock: Clock
    body: JsonObject
    lines: list[JsonObject] = field(default_factory=list)

    def text(self, name: str) -> str:
        """A required text field.

        Raises:
            ApiError: 400/11 when it is missing.
        """
        value = self.body.get(name)
        if value is None or value == "":
            raise missing_fields(name)
        return str(value)

    def items(self, name: str) -> list[Any]:
        """A list field, empty if missing."""
        return list(self.body.get(name) or [])

    def flag(self, name: str) -> bool:
        """A boolean field, false if missing."""
        return self.body.get(name) is True

    def stamp(self) -> str:
        """The time in ClearML's form, always with microseconds, so that stamps sort as text."""
        return self.clock.now().isoformat(timespec="microseconds")

    def new(self, name: str, **fields: Any) -> JsonObject:
        """A new document of the caller's, with the fields that Tasks, models and projects share, and these."""
        now = self.stamp()
        return {
            "id": new_id(), "company": self.identity.company, "user": self.identity.user, "name": name, "created": now,
            "last_update": now, "tags": [], "system_tags": [], **fields,
        }  # fmt: skip


Handler = Callable[[Call], JsonObject]


def new_id() -> str:
    """A ClearML object id: 32 hex digits."""
    return secrets.token_hex(16)

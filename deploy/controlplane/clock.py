"""Times and ids in their wire form: the two sources of non-determinism, passed to their users by constructor."""

import secrets
import threading
from datetime import UTC, datetime, timedelta


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

    def stamp(self) -> str:
        """`now()` in ClearML's form, always with microseconds, so that stamps sort as text."""
        return self.now().isoformat(timespec="microseconds")


def new_id() -> str:
    """A ClearML object id: 32 hex digits."""
    return secrets.token_hex(16)

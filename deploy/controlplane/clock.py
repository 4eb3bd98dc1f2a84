"""Time and ids as the wire shows them.

The two sources of non-determinism, handed to whoever needs them by constructor.
"""

import secrets
import threading
from datetime import UTC, datetime, timedelta


class Clock:
    """Wall-clock time in UTC that never repeats and never goes back within a process.

    Clients poll `last_change` to see whether a Task was edited: two edits within one tick must differ. Safe across
    threads.
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
        """`now()` in ClearML's form, always with microseconds so that stamps sort as text."""
        return self.now().isoformat(timespec="microseconds")


def new_id() -> str:
    """A ClearML object id: 32 hex digits."""
    return secrets.token_hex(16)

"""The port of sinks, which take the records of the payload log: ``files`` and ``events``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, Protocol

import orjson

from gateway.hooks.wire import JSON_OPTIONS, json_form

# Outcomes of a record; with all but the first, the record is lost.
WRITTEN: Final = "written"
QUEUE_FULL: Final = "queue_full"
DISK_FULL: Final = "disk_full"
TOO_LARGE: Final = "too_large"
NOT_JSON: Final = "not_json"
NOT_WRITABLE: Final = "not_writable"
UNREACHABLE: Final = "unreachable"
REFUSED: Final = "refused"

Record = Mapping[str, Any]


class Sink(Protocol):
    """Takes records. One thread calls it."""

    where: str
    """The destination, for people."""
    most: int
    """Most records per call of ``write``."""

    def framed(self, record: Record) -> bytes:
        """Return the bytes of one record. Raises ``TypeError`` or ``ValueError`` if it has no JSON form."""
        ...

    def write(self, frames: Sequence[bytes]) -> tuple[str, str]:
        """Write all frames or none; return the outcome, and the reason if they are lost."""
        ...

    def idle(self) -> None:
        """Do what is due, such as finishing an old file; called regularly."""
        ...

    def stop(self) -> None:
        """Make a waiting ``write`` give up soon. Called from another thread."""
        ...

    def close(self) -> None:
        """Finish what was begun."""
        ...


def dumps(value: object, *, ends: bool = False) -> bytes:
    """Return a value as JSON; ``ends`` appends a newline. Raises ``TypeError`` or ``ValueError``."""
    return orjson.dumps(value, default=json_form, option=JSON_OPTIONS | (orjson.OPT_APPEND_NEWLINE if ends else 0))

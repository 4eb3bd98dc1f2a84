"""Where records of the payload log go: the port of ``files`` and ``events``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, Protocol

import orjson

from gateway.hooks.wire import JSON_OPTIONS, json_form

# What may become of a record; all but the first lose it.
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
    """Where it writes, for people."""
    most: int
    """Records that are handed over at once, at most."""

    def framed(self, record: Record) -> bytes:
        """Return the bytes of one record. Raises ``TypeError`` or ``ValueError`` if it has no JSON form."""
        ...

    def write(self, frames: Sequence[bytes]) -> tuple[str, str]:
        """Write them all or none; return the outcome of each and, if they are lost, why."""
        ...

    def idle(self) -> None:
        """Do what is due though nothing is written."""
        ...

    def stop(self) -> None:
        """Make ``write`` give up soon if it waits; called from another thread."""
        ...

    def close(self) -> None:
        """Finish what was begun."""
        ...


def dumps(value: object, *, ends: bool = False) -> bytes:
    """Return a value as JSON, on a line of its own if it ``ends``. Raises ``TypeError`` or ``ValueError``."""
    return orjson.dumps(value, default=json_form, option=JSON_OPTIONS | (orjson.OPT_APPEND_NEWLINE if ends else 0))

"""The port of sinks, which take the records of the payload log: ``files``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, Protocol

import orjson

from gateway.hooks.json_form import to_json

# Outcomes of a record: with every outcome except WRITTEN, the record is lost.
WRITTEN: Final = "written"
QUEUE_FULL: Final = "queue_full"
DISK_FULL: Final = "disk_full"
TOO_LARGE: Final = "too_large"
NOT_JSON: Final = "not_json"
NOT_WRITABLE: Final = "not_writable"

Record = Mapping[str, Any]


class Sink(Protocol):
    """Takes records. One thread calls it."""

    destination: str
    """The folder, for messages and the status."""
    max_records: int
    """The most records in one call of ``write``."""

    def encode(self, record: Record) -> bytes:
        """Return one record as bytes. Raises ``TypeError`` or ``ValueError`` if it has no JSON form."""
        ...

    def write(self, encoded: Sequence[bytes]) -> tuple[str, str]:
        """Write all encoded records or none; return the outcome, and the reason if they are lost, else ``""``."""
        ...

    def idle(self) -> None:
        """Do periodic work, such as finishing an old file; called about twice a second."""
        ...

    def close(self) -> None:
        """Finish the current file and release everything."""
        ...


def dumps(value: object, *, newline: bool = False) -> bytes:
    """Return a value as JSON; ``newline`` appends one. Raises ``TypeError`` or ``ValueError``."""
    return to_json(value, orjson.OPT_APPEND_NEWLINE if newline else 0)

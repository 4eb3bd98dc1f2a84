"""Reads the records of one endpoint and time from a payload log, and the texts in them.

Called by ``drift explain`` and ``drift report --by``. Files are read line by line. Lines that are incomplete or no
records are skipped and counted. Texts are as the log recorded them, redacted if it redacts.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from deploy.tools.errors import DeployError

_FIELDS: Final = ("text", "texts", "inputs", "input", "prompt", "messages", "query", "question", "sentence")
"""Fields of the protocols' requests that hold texts; the first one found counts."""
_NO_TEXTS: Final = frozenset({"parameters", "options", "model", "role", "type", "id", "user", "name", "datatype"})
"""Fields whose strings are not texts."""
_MAX_LEVELS: Final = 20
"""Depth to which nested values are searched."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """Selects records: of an endpoint, of one of its versions (None: any), from ``start`` until before ``end``.

    ``endpoint`` may be the url of a version (``sentiment/2``).
    """

    endpoint: str
    version: str | None = None
    start: datetime | None = None
    end: datetime | None = None

    def has(self, record: Mapping[str, Any], at: datetime) -> bool:
        """Return True if a record is selected. ``at``: its time."""
        return (
            self.endpoint in (record.get("endpoint"), record.get("url"))
            and self.version in (None, record.get("version"))
            and (self.start is None or at >= self.start)
            and (self.end is None or at < self.end)
        )


@dataclass(slots=True)
class Read:
    """Counts of what was read: selected records, unreadable lines, and the endpoints seen."""

    records: int = 0
    unreadable: int = 0
    endpoints: set[str] = field(default_factory=set)


def texts(log: Path, wanted: Wanted, read: Read) -> Iterator[str]:
    """Return the texts of the selected records. Raises like ``records``."""
    for record in records(log, wanted, read):
        yield from texts_of(record.get("request"))


def records(log: Path, wanted: Wanted, read: Read) -> Iterator[Mapping[str, Any]]:
    """Return the selected records, the oldest file first. Raises ``DeployError`` if there is no log."""
    files = [log] if log.is_file() else sorted([*log.glob("*.jsonl"), *log.glob("*.jsonl.part")])
    if not files:
        raise DeployError(
            f"there is no payload log in {log}",
            hint="name its folder or file with --log. TRITON_GATEWAY_PAYLOAD_LOG turns the log on "
            "(docs/payload-log.md)",
        )
    for path in files:
        try:
            if wanted.start is not None and path.stat().st_mtime < wanted.start.timestamp():
                continue  # its last record is older
            with path.open("rb") as lines:
                for line in lines:
                    yield from _of_line(line, wanted, read)
        except FileNotFoundError:
            continue  # it was deleted or renamed in the meantime
        except OSError as error:
            raise DeployError(f"{path} cannot be read: {error.strerror or error}") from error


def _of_line(line: bytes, wanted: Wanted, read: Read) -> Iterator[Mapping[str, Any]]:
    try:
        record = json.loads(line)
        record = record.get("data", record)  # a CloudEvent, if a receiver wrote the file
        at = datetime.fromisoformat(record["time"])
        at = at.replace(tzinfo=UTC) if at.tzinfo is None else at
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        read.unreadable += bool(line.strip())
        return
    read.endpoints.add(str(record.get("endpoint")))
    if wanted.has(record, at):
        read.records += 1
        yield record


def texts_of(request: object) -> Iterator[str]:
    """Return the texts of a request: those in a field for texts, otherwise all strings in it."""
    if isinstance(request, dict):
        for name in _FIELDS:
            if name in request:
                yield from _strings(request[name], _MAX_LEVELS)
                return
    yield from _strings(request, _MAX_LEVELS)


def _strings(value: object, levels: int) -> Iterator[str]:
    if isinstance(value, str):
        if value.strip():
            yield value
    elif isinstance(value, list) and levels:
        for one in value:
            yield from _strings(one, levels - 1)
    elif isinstance(value, dict) and levels and "base64" not in value:
        for name, one in value.items():
            if name not in _NO_TEXTS:
                yield from _strings(one, levels - 1)

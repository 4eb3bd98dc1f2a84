"""Our records beside the serving Task: what must not be lost when a stock tool writes an old copy of the Task back.

A record is a JSON value with a kind and a key, and one owner. There is no compare-and-set: writers of different keys do
not affect each other, and of two writers of one key the last one counts.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, Protocol

Kind = Literal[
    "content_hash", "rollout", "rollout_request", "shadow", "version_number", "default_version",
    "objective", "load_request", "caller_key", "history", "history_now", "history_begun",
    "leader", "report", "judged",
]  # fmt: skip
"""The kind of a record, which is also the section of the companion Task's hyperparameters."""

Records = Mapping[str, Mapping[str, Mapping[str, Any]]]
"""Kind → key → value. Kinds without records may be missing."""


@dataclass(frozen=True, slots=True)
class Record:
    """One record. ``key`` is any text, unique within its kind; ``value`` is a JSON object."""

    kind: Kind
    key: str
    value: Mapping[str, Any]


class Ledger(Protocol):
    """Reads and writes the records of one serving Task. Blocking; safe to call from any thread.

    Every method raises ``RegistryUnavailable`` if the server does not answer, and ``RegistryRefused`` if it refuses
    (for example a write with read-only credentials), both within a bounded time.
    """

    def marker(self) -> str:
        """Return a value that changes whenever a record changes; cheap to get. Empty without records."""
        ...

    def read(self) -> Records:
        """Return all records; empty if nothing was written yet."""
        ...

    def write(self, records: Iterable[Record]) -> None:
        """Add these records, or replace those with the same kind and key, in one step. Other records stay."""
        ...

    def remove(self, kind: Kind, keys: Iterable[str]) -> None:
        """Remove these records if they exist. Only for kinds on which writers need not agree."""
        ...

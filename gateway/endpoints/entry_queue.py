"""The entries that wait for a call, and how many rows and tokens they are, by class of priority. Pure."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterator, Sequence
from typing import Generic

from gateway.endpoints.class_counts import ClassCounts
from gateway.endpoints.entries import Entry, R
from gateway.trace import BATCH, CLASSES, DEFAULT, DEFAULT_FLOW


class EntryQueue(ClassCounts, Generic[R]):
    """The queue of one batcher, oldest entry first."""

    __slots__ = ("arrived", "entries", "flow", "is_mixed", "retries")

    def __init__(self) -> None:
        super().__init__()
        self.entries: list[Entry[R]] = []
        self.arrived = 0
        """The rows that were ever added."""
        self.flow = DEFAULT_FLOW
        """The flow of the entry that was first in the empty queue."""
        self.is_mixed = False
        """Whether entries of other flows may be in the queue as well."""
        self.retries: deque[list[Entry[R]]] = deque()
        """Entries that were in failed calls. Each list is one of the next calls; they are not counted."""

    def add(self, entry: Entry[R]) -> None:
        """Append an entry. Runs for every request."""
        flow, entries = entry.flow, self.entries
        if not entries:
            self.flow, self.is_mixed = flow, False
        elif flow is not self.flow and flow != self.flow:
            self.is_mixed = True
        entries.append(entry)
        self.arrived += entry.count
        self.rows += entry.count
        self.tokens += entry.tokens
        if flow is not DEFAULT_FLOW and flow.rank != DEFAULT:
            self.class_rows[flow.rank] += entry.count
            self.class_tokens[flow.rank] += entry.tokens

    def remove(self, entries: Sequence[Entry[R]]) -> None:
        """Remove entries that are in the queue."""
        gone = set(map(id, entries))
        self.entries = [entry for entry in self.entries if id(entry) not in gone]
        for entry in entries:
            self._discount(entry)

    def discard(self, entry: Entry[R]) -> None:
        """Remove an entry if it is in the queue."""
        if entry in self.entries:
            self.entries.remove(entry)
            self._discount(entry)

    def all_entries(self) -> Iterator[Entry[R]]:
        """Return all entries, including those that are called again; some of the latter may have ended."""
        yield from self.entries
        for retry in self.retries:
            yield from retry

    def clear(self) -> None:
        """Remove all entries but the retries."""
        self.entries, self.rows, self.tokens = [], 0, 0
        if any(self.class_rows):
            self.class_rows, self.class_tokens = [0] * len(CLASSES), [0] * len(CLASSES)

    def _discount(self, entry: Entry[R]) -> None:
        self.rows -= entry.count
        self.tokens -= entry.tokens
        rank = entry.flow.rank
        if rank != DEFAULT:
            self.class_rows[rank] -= entry.count
            self.class_tokens[rank] -= entry.tokens

    @property
    def is_batch_only(self) -> bool:
        """True if the queue is not empty and all of it is of class batch."""
        return 0 < self.rows == self.class_rows[BATCH]

    def entries_by_class(self) -> dict[str, int]:
        """Return the number of entries of each class of priority, by the class's name."""
        counts = Counter(entry.flow.rank for entry in self.entries)
        return {name: counts[rank] for rank, name in enumerate(CLASSES)}

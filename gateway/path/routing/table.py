"""Publishes snapshots, with one assignment."""

from __future__ import annotations

from gateway.path.routing.snapshot import Snapshot


class RoutingTable:
    """Holds the current snapshot. A request reads ``current`` exactly once."""

    __slots__ = ("current",)

    def __init__(self) -> None:
        self.current = Snapshot(has_been_read=False)

    def swap(self, snapshot: Snapshot) -> Snapshot:
        """Publish ``snapshot`` and return the one it replaces."""
        previous, self.current = self.current, snapshot
        return previous

"""Whether this process is alive, ready and draining; written by the control loop, read by the health routes.

Readiness means: the configured endpoints that can be served are being served. One broken endpoint does not make a
gateway unready (it must not take the others down), no endpoint at all does: a gateway that can serve nothing must not
get traffic (compare MLServer#2056). Endpoints that were pinned must be served, whatever their failures.
"""

from __future__ import annotations


class Health:
    """Mutable facts about this process. Plain attributes: one event loop writes and reads them."""

    __slots__ = ("backend_live", "first_sync_done", "is_draining", "is_leaving", "missing", "pending", "serving")

    def __init__(self) -> None:
        self.first_sync_done = False
        self.serving = 0
        self.pending: tuple[str, ...] = ()
        self.missing: tuple[str, ...] = ()
        """Pinned paths that cannot be served now."""
        self.backend_live: dict[str, bool] = {}
        self.is_draining = False
        """Nothing is answered any more."""
        self.is_leaving = False
        """Everything is answered, but callers are told to go elsewhere."""

    def reasons(self) -> list[str]:
        """Return why the process is not ready; empty when it is."""
        found = []
        if self.is_draining or self.is_leaving:
            found.append("shutting down")
        if not self.first_sync_done:
            found.append("the serving Task has not been read yet")
        elif self.pending:
            found.append(f"waiting for {', '.join(self.pending[:5])} to become ready")
        elif self.serving == 0:
            found.append("no endpoint is served: deploy one with `clearml-serving model add …`")
        if self.first_sync_done and self.missing:
            found.append(f"pinned but not served: {', '.join(self.missing[:5])}")
        found += [f"Triton at {address} does not answer" for address, live in self.backend_live.items() if not live]
        return found

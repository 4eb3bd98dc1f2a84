"""Whether this process is alive, ready and draining; written by the control loop, read by the health routes.

Readiness must never be the outage. Before a process has been ready for the first time it waits, bounded, for what was
served before it started, so that a rollout drops nothing. From then on it is ready as long as it can answer at least
one endpoint: what is new, slow or broken is ``degraded``, not unready. It is unready again when it has lost every
endpoint, or every Triton that its endpoints need (a gateway that can serve nothing must not get traffic; compare
MLServer#2056).
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Final

_MOST_LISTED: Final = 5


class Health:
    """Mutable facts about this process. Plain attributes: one event loop writes and reads them.

    ``latch`` is a file by which the workers of one gateway tell each other that it has been ready: one that is replaced
    is not a gateway that starts.
    """

    __slots__ = (
        "_latch", "awaited", "backend_live", "first_sync_done", "has_been_ready", "is_draining", "is_leaving",
        "is_settling", "missing", "needs", "unserved",
    )  # fmt: skip

    def __init__(self, latch: Path | None = None) -> None:
        self._latch = latch
        self.first_sync_done = False
        self.has_been_ready = False
        """Once true it stays: from then on only what is lost counts."""
        self.needs: Mapping[str, str] = {}
        """Every url that is served, and the address of the Triton it needs; empty where it needs none."""
        self.unserved: Mapping[str, str] = {}
        """Urls that are configured and not served: their state and reason."""
        self.awaited: tuple[str, ...] = ()
        """Urls that were served before this process started and may still come."""
        self.missing: tuple[str, ...] = ()
        """Pinned paths that cannot be served now."""
        self.is_settling = False
        """Something that was served before is being built for the first time: it may be a matter of moments."""
        self.backend_live: dict[str, bool] = {}
        """The Tritons that are needed now, as far as they have been asked."""
        self.is_draining = False
        """Nothing is answered any more."""
        self.is_leaving = False
        """Everything is answered, but callers are told to go elsewhere."""

    def note(self) -> None:
        """Remember that the process can be ready, once it, or another worker, can."""
        if self.has_been_ready:
            return
        if self._latch is not None and self._latch.exists():
            self.has_been_ready = True
        elif not self._unready():
            self.has_been_ready = True
            if self._latch is not None:
                with contextlib.suppress(OSError):  # without it the next worker waits for itself
                    self._latch.touch()

    def reasons(self) -> list[str]:
        """Return why the process is not ready; empty when it is."""
        leaving = ["shutting down"] if self.is_draining or self.is_leaving else []
        return leaving + self._unready()

    def degraded(self) -> list[str]:
        """Return what a process that may be ready cannot do."""
        found = []
        for address in self._down():
            urls = [url for url, needed in self.needs.items() if needed == address]
            lost = f": {_listed(urls)} cannot be answered" if urls else ""
            found.append(f"Triton at {address} does not answer{lost}")
        found += [f"{url} {reason}" for url, reason in list(self.unserved.items())[:_MOST_LISTED]]
        if len(self.unserved) > _MOST_LISTED:
            found.append(f"{len(self.unserved) - _MOST_LISTED} more are not served: see /v1/status")
        if self.missing:
            found.append(f"pinned but not served: {_listed(self.missing)}")
        return found

    def _unready(self) -> list[str]:
        if not self.first_sync_done:
            return ["the serving Task has not been read yet"]
        found = []
        if not self.has_been_ready:
            if self.awaited:
                told = [f"{url} ({self.unserved.get(url, 'starting')})" for url in self.awaited]
                found.append(f"waiting for what was served before: {_listed(told)}")
            if self.missing:
                found.append(f"pinned but not served: {_listed(self.missing)}")
        if not self.needs:
            if self.unserved:
                told = [f"{url} {reason}" for url, reason in self.unserved.items()]
                found.append(f"no endpoint is served: {_listed(told)}")
            else:
                found.append("no endpoint is served: deploy one with `clearml-serving model add …`")
        elif not any(self.backend_live.get(address, True) for address in self.needs.values()):
            found += [f"Triton at {address} does not answer" for address in self._down()]
        return found

    def _down(self) -> list[str]:
        return [address for address, live in self.backend_live.items() if not live]


def _listed(texts: Iterable[str]) -> str:
    found = list(texts)
    more = f" and {len(found) - _MOST_LISTED} more" if len(found) > _MOST_LISTED else ""
    return ", ".join(found[:_MOST_LISTED]) + more

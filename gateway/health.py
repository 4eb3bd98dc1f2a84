"""Whether this process is alive, ready and draining; asked by the health routes and by every edge.

Readiness must never be the outage. Before a process has been ready for the first time it waits, bounded, for what was
served before it started, so that a rollout drops nothing. From then on it is ready as long as it can answer at least
one endpoint: what is new, slow or broken is ``degraded``, not unready. It is unready again when it has lost every
endpoint, or every Triton that its endpoints need (a gateway that can serve nothing must not get traffic; compare
MLServer#2056).
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Final, Protocol

from gateway.pools import DEFAULT

_MAX_LISTED: Final = 5


class Standing(Protocol):
    """What readiness asks about served urls; implemented by ``control.standing``."""

    def needs(self) -> Mapping[str, str]:
        """Return every url that is served, and the address of the Triton it needs; empty if it needs none."""
        ...

    def unserved(self) -> Mapping[str, str]:
        """Return the urls that are configured and not served: their state and reason."""
        ...

    def awaited(self) -> Sequence[str]:
        """Return the urls that were served before this process started and may still come, while that is waited for."""
        ...

    def missing(self) -> Sequence[str]:
        """Return the pinned paths that cannot be served now."""
        ...


class Health:
    """What is known of this process. One event loop writes and reads it.

    ``latch`` is a file by which the workers of one gateway tell each other that it has been ready: one that is replaced
    is not a gateway that starts.
    """

    __slots__ = (
        "_latch", "backend_live", "first_sync_done", "has_been_ready", "is_draining", "is_leaving", "pools", "standing",
        "waits_for_tritons",
    )  # fmt: skip

    def __init__(self, latch: Path | None = None) -> None:
        self._latch = latch
        self.standing: Standing | None = None
        """None before anything is followed."""
        self.first_sync_done = False
        self.has_been_ready = False
        """Once true it stays: from then on only what is lost counts."""
        self.backend_live: dict[str, bool] = {}
        """The Tritons that are needed now, as far as they have been asked."""
        self.waits_for_tritons = False
        """Requests wait for a pool without any: who is not asked would never let one be started."""
        self.pools: dict[str, str] = {}
        """The pools that each of them is of."""
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
        standing = self.standing
        if standing is None:
            return []
        found = []
        needs = standing.needs()
        for address in self._down():
            urls = [url for url, needed in needs.items() if needed == address]
            lost = f": {_listed(urls)} cannot be answered" if urls else ""
            found.append(f"{self._named(address)} does not answer{lost}")
        unserved = standing.unserved()
        found += [f"{url} {reason}" for url, reason in list(unserved.items())[:_MAX_LISTED]]
        if len(unserved) > _MAX_LISTED:
            found.append(f"{len(unserved) - _MAX_LISTED} more are not served: see /v1/status")
        if missing := standing.missing():
            found.append(f"pinned but not served: {_listed(missing)}")
        return found

    def _unready(self) -> list[str]:
        standing = self.standing
        if standing is None or not self.first_sync_done:
            return ["the serving Task has not been read yet"]
        found = []
        if not self.has_been_ready:
            if awaited := standing.awaited():
                unserved = standing.unserved()
                told = [f"{url} ({unserved.get(url, 'starting')})" for url in awaited]
                found.append(f"waiting for what was served before: {_listed(told)}")
            if missing := standing.missing():
                found.append(f"pinned but not served: {_listed(missing)}")
        needs = standing.needs()
        if not needs:
            if unserved := standing.unserved():
                told = [f"{url} {reason}" for url, reason in unserved.items()]
                found.append(f"no endpoint is served: {_listed(told)}")
            else:
                found.append("no endpoint is served: deploy one with `clearml-serving model add …`")
        elif not self.waits_for_tritons and not any(self.backend_live.get(address, True) for address in needs.values()):
            found += [f"{self._named(address)} does not answer" for address in self._down()]
        return found

    def _named(self, address: str) -> str:
        pool = self.pools.get(address, DEFAULT)
        return f"Triton at {address}" if pool == DEFAULT else f"pool {pool}: Triton at {address}"

    def _down(self) -> list[str]:
        return [address for address, live in self.backend_live.items() if not live]


def _listed(texts: Iterable[str]) -> str:
    found = list(texts)
    more = f" and {len(found) - _MAX_LISTED} more" if len(found) > _MAX_LISTED else ""
    return ", ".join(found[:_MAX_LISTED]) + more

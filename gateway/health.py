"""Whether this process is alive, ready or draining; the health routes and every edge ask.

Readiness must never cause an outage. Before its first readiness, a process waits, with a limit, for the endpoints that
were served before it started, so a rollout loses none. After that it is ready as long as it can answer at least one
endpoint: new, slow or broken endpoints make it ``degraded``, not unready. It becomes unready again if it has lost every
endpoint, or every Triton that its endpoints need, because a gateway that can serve nothing must get no traffic (compare
MLServer#2056).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final, Protocol

from gateway.pools import DEFAULT

_MAX_LISTED: Final = 5


class ServedUrls(Protocol):
    """The state of the served urls, for readiness; implemented by ``control.version``."""

    def needs(self) -> Mapping[str, str]:
        """Return every served url with the address of the Triton it needs; an empty address if it needs none."""
        ...

    def unserved(self) -> Mapping[str, str]:
        """Return the urls that are configured but not served, with their state and reason."""
        ...

    def awaited(self) -> Sequence[str]:
        """Return the urls from before this process started that it still waits for."""
        ...


class Health:
    """The health of this process. One event loop writes and reads it.

    A worker that joins others which serve ``has_been_ready``: it need not wait as a starting gateway does.
    """

    __slots__ = (
        "backend_live", "first_sync_done", "has_been_ready", "is_draining", "is_leaving", "pools",
        "registry_error", "served_urls", "waits_for_tritons",
    )  # fmt: skip

    def __init__(self, *, has_been_ready: bool = False) -> None:
        self.served_urls: ServedUrls | None = None
        """None until the serving Task is followed."""
        self.registry_error = ""
        """Why the serving Task cannot be read now; empty if it can."""
        self.first_sync_done = False
        self.has_been_ready = has_been_ready
        """Stays true once it is: from then on only losses count."""
        self.backend_live: dict[str, bool] = {}
        """Whether each Triton that is needed answers, by address, as far as that is known."""
        self.waits_for_tritons = False
        """Whether the gateway stays ready for pools without a Triton: only requests make a pool start one."""
        self.pools: dict[str, str] = {}
        """The pool of each Triton, by address."""
        self.is_draining = False
        """Whether new requests are refused."""
        self.is_leaving = False
        """Whether readiness fails while requests are still answered, so callers go elsewhere."""

    def note(self) -> None:
        """Update ``has_been_ready``."""
        self.has_been_ready = self.has_been_ready or not self._unready()

    def reasons(self) -> list[str]:
        """Return why the process is not ready; empty when it is."""
        leaving = ["shutting down"] if self.is_draining or self.is_leaving else []
        return leaving + self._unready()

    def degraded(self) -> list[str]:
        """Return what the process cannot do, even if it is ready."""
        served_urls = self.served_urls
        if served_urls is None:
            return []
        found = []
        if self.registry_error and self.first_sync_done:
            found.append(f"the configuration may be out of date: {self.registry_error}")
        needs = served_urls.needs()
        for address in self._down():
            urls = [url for url, needed in needs.items() if needed == address]
            lost = f": {listed(urls)} cannot be answered" if urls else ""
            found.append(f"{self._named(address)} does not answer{lost}")
        unserved = served_urls.unserved()
        found += [f"{url} {reason}" for url, reason in list(unserved.items())[:_MAX_LISTED]]
        if len(unserved) > _MAX_LISTED:
            found.append(f"{len(unserved) - _MAX_LISTED} more are not served: see /v1/status")
        return found

    def _unready(self) -> list[str]:
        served_urls = self.served_urls
        if served_urls is None or not self.first_sync_done:
            because = f": {self.registry_error}" if self.registry_error else ""
            return [f"the serving Task has not been read yet{because}"]
        found = []
        if not self.has_been_ready and (awaited := served_urls.awaited()):
            unserved = served_urls.unserved()
            told = [f"{url} ({unserved.get(url, 'starting')})" for url in awaited]
            found.append(f"waiting for what was served before: {listed(told)}")
        needs = served_urls.needs()
        if not needs:
            if unserved := served_urls.unserved():
                told = [f"{url} {reason}" for url, reason in unserved.items()]
                found.append(f"no endpoint is served: {listed(told)}")
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


def listed(texts: Iterable[str]) -> str:
    """Return the first of ``texts``, and how many more there are."""
    found = list(texts)
    more = f" and {len(found) - _MAX_LISTED} more" if len(found) > _MAX_LISTED else ""
    return ", ".join(found[:_MAX_LISTED]) + more

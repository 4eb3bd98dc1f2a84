"""The immutable snapshot that requests read: paths to endpoint versions; and the table that holds the current one.

``control.assemble`` makes a snapshot, and ``control.reconcile`` publishes it. Each request reads it once. After
publication, nothing that it refers to changes, except for counters inside endpoints and the state of versions that
cannot answer.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Protocol

from gateway.errors import EndpointNotFound, ModelNotReady, Unavailable, VersionNotFound
from gateway.handlers.endpoint import Endpoint
from gateway.path.canary import Weighted, position_of
from gateway.spec import Fault
from gateway.trace import CANARY, DIRECT, STABLE


class Pending(Protocol):
    """Why a configured path cannot answer: the version that it waits for. Control may change its state."""

    @property
    def state(self) -> str:
        """``pending``, ``failed`` or ``refused``."""

    @property
    def reason(self) -> str:
        """What it is doing, or why it failed; shown to callers and on the status page."""

    @property
    def stands_alone(self) -> bool:
        """Whether it is an endpoint without versions."""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Endpoints by url, canaries by path, and what is configured but not served."""

    revision: str = ""
    endpoints: Mapping[str, Endpoint] = field(default_factory=lambda: MappingProxyType({}))
    canaries: Mapping[str, Weighted] = field(default_factory=lambda: MappingProxyType({}))
    pending: Mapping[str, Pending] = field(default_factory=lambda: MappingProxyType({}))
    """Configured versions that do not serve, successors of ``endpoints`` included, and canaries without a route."""
    faults: tuple[Fault, ...] = ()
    defaults: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    """Bare name → the url that it stands for, whether that version can answer or not."""
    has_been_read: bool = True
    """False before the first configuration: then no path is known to be unknown."""

    def routes(self) -> Iterator[tuple[str, str, str]]:
        """Return each (endpoint, version, route) that a request may be counted under."""
        for endpoint in self.endpoints.values():
            yield endpoint.identity.endpoint, endpoint.identity.version, DIRECT
        for canary in self.canaries.values():
            for url in canary.shares:
                identity = self.endpoints[url].identity
                yield identity.endpoint, identity.version, STABLE if url == canary.stable else CANARY

    def resolve(
        self, path: str, routing_key: str | None = None, draw: Callable[[], float] = random.random
    ) -> tuple[Endpoint, str, Endpoint | None]:
        """Return the endpoint that answers ``path``, the route's name and, for a canary, the fallback endpoint.

        The route is ``direct``; for the versions of a canary it is ``stable`` (the fallback) or ``canary``. A canary
        wins over an endpoint with the same path, as in clearml-serving, and both win over a recorded default. Raises
        ``EndpointNotFound`` or ``VersionNotFound``; for what is configured but cannot answer yet, ``Unavailable``.
        """
        canary = self.canaries.get(path)
        if canary is not None:
            position = draw() if routing_key is None else position_of(routing_key, path)
            url = canary.pick(position)
            if url == canary.stable:
                return self.endpoints[url], STABLE, None
            return self.endpoints[url], CANARY, self.endpoints.get(canary.stable)
        endpoint = self._named(path)
        if endpoint is None:
            raise self.missing(path)
        return endpoint, DIRECT, None

    def serves(self, path: str) -> bool:
        """Return whether a version answers ``path``: looked at for every request, so without making a list."""
        return path in self.canaries or self._named(path) is not None

    def _named(self, path: str) -> Endpoint | None:
        """Return the version at a url, or the one that a bare name stands for."""
        return self.endpoints.get(path) or self.endpoints.get(self.defaults.get(path, ""))

    def at(self, path: str) -> Sequence[Endpoint]:
        """Return the versions that may answer ``path``: none, one, or those of a canary, its stable version first."""
        canary = self.canaries.get(path)
        if canary is not None:
            return [self.endpoints[url] for url in dict.fromkeys((canary.stable, *canary.shares))]
        endpoint = self._named(path)
        return () if endpoint is None else (endpoint,)

    def names(self) -> set[str]:
        """Return all paths that can be requested now."""
        return {*self.endpoints, *self.canaries, *filter(self.serves, self.defaults)}

    def missing(self, path: str = "") -> EndpointNotFound | VersionNotFound | Unavailable:
        """Return the error of a path without a route. An empty path stands for the only endpoint."""
        if not self.has_been_read:
            return Unavailable("this gateway has not read its configuration yet", hint="try again", retry_after=1)
        if not path and self.pending:
            states = sorted({pending.state for pending in self.pending.values()})
            return ModelNotReady(f"no endpoint is served yet: what is configured is {', '.join(states)}", retry_after=2)
        default = self.defaults.get(path, "")
        pending = self.pending.get(default or path)
        if pending is not None:
            return ModelNotReady(f"endpoint {default or path} is {pending.state}: {pending.reason}", retry_after=2)
        urls = sorted({*self.endpoints, *self.pending, *self.canaries})
        base = path.rpartition("/")[0]
        near = [u for u in urls if u.startswith(f"{path}/") or (base and f"{u}/".startswith(f"{base}/"))]
        if near:
            known = ", ".join(near[:10])
            return VersionNotFound(
                f"no version answers at {_shown(path)}",
                hint=f"call one of {known}, or choose a default: triton-gateway default ENDPOINT VERSION",
            )
        hint = f"deployed are {', '.join(urls[:10])}" if urls else "none is; `triton-gateway deploy FOLDER` adds one"
        what = f"endpoint {_shown(path)} does not exist" if path else "no endpoint is served here"
        return EndpointNotFound(what, hint=hint)


class RoutingTable:
    """Holds the current snapshot. A request reads ``current`` exactly once."""

    __slots__ = ("current",)

    def __init__(self) -> None:
        self.current = Snapshot(has_been_read=False)

    def swap(self, snapshot: Snapshot) -> None:
        """Publish ``snapshot``."""
        self.current = snapshot


def _shown(path: str) -> str:
    return ascii(path)[1:-1][:100]

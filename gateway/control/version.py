"""The versions of every url: the phase of each, the permitted moves, and what is served meanwhile. Pure.

    pending ──► loaded ──► serving ──► retiring ──► gone
       ▲          │
       └──────────┘

What is known about a version on its way are its conditions: Fetched, Loaded, Validated. A version has failed if it is
pending with a condition that is not ok, and it is refused if that is final.

Each url has the ``wanted`` version, which the serving Task asks for. Until that one serves, the url may also have a
``former`` version: the one served before, still in service or, after a restart, built again. ``reconcile`` moves
versions; routes, readiness, status and page read these objects, so they cannot disagree.

Invariants after every call, for every url (checked by a property test over random events):

- each version is in exactly one phase, and reached it by a move in ``FOLLOWS``;
- at most one version serves; it stays until its successor serves or the url is removed;
- a version has an endpoint exactly while it serves or retires, and each endpoint that served is closed once.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, Literal, get_args

from gateway.control.compile import EndpointPlan
from gateway.handlers.endpoint import Endpoint


class Phase(StrEnum):
    """Where a version is."""

    PENDING = "pending"
    """Configured; its files are being fetched, Triton loads its model, its code is loaded; or that has failed."""
    LOADED = "loaded"
    """It answers its first requests, which come from the gateway; then it serves from the next swap of the routes."""
    SERVING = "serving"
    RETIRING = "retiring"
    """No longer in the routes; its last requests are being answered."""
    GONE = "gone"


FOLLOWS: Final[Mapping[Phase, frozenset[Phase]]] = {
    Phase.PENDING: frozenset({Phase.LOADED, Phase.GONE}),
    Phase.LOADED: frozenset({Phase.SERVING, Phase.PENDING, Phase.GONE}),
    Phase.SERVING: frozenset({Phase.RETIRING}),
    Phase.RETIRING: frozenset({Phase.GONE}),
    Phase.GONE: frozenset(),
}
"""The phases that may follow each phase."""

ConditionName = Literal["Fetched", "Loaded", "Validated"]
Progress = Callable[[ConditionName, str], None]
"""Gets the condition that an attempt works for, and what it does."""
_CONDITIONS: Final[tuple[ConditionName, ...]] = get_args(ConditionName)


class Version:
    """One version of one url; its status for callers, status and page while it does not serve (``Pending``).

    Only ``Versions`` changes it.
    """

    __slots__ = (
        "attempts", "doing", "endpoint", "failed_at", "is_final", "phase", "plan", "reason", "since", "url",
    )  # fmt: skip

    def __init__(self, url: str, plan: EndpointPlan | None, since: float, reason: str = "starting") -> None:
        self.url = url
        self.plan = plan
        """How to build it; None if it is refused."""
        self.phase = Phase.PENDING
        self.since = since
        """When it entered this phase (Unix seconds)."""
        self.doing: ConditionName = "Fetched"
        """The condition that the present attempt is working for; those before it hold."""
        self.failed_at: ConditionName | None = None
        """The condition at which an attempt failed last; None if none has failed, and once it serves."""
        self.reason = reason
        """What it is doing, or why it failed. A failure's reason stays during later attempts, until it serves."""
        self.attempts = 0
        self.is_final = plan is None
        """Another attempt would fail everywhere: the configuration or the model must change first."""
        self.endpoint: Endpoint | None = None

    @property
    def fingerprint(self) -> str:
        """Equal for equal plans; empty for a refused version."""
        return self.plan.fingerprint if self.plan is not None else ""

    @property
    def state(self) -> str:
        """``failed`` or ``refused`` (its configuration is invalid), else its phase. A failed version stays ``failed``
        during later attempts, until it serves.
        """
        if self.plan is None:
            return "refused"
        return "failed" if self.failed_at else "pending"

    @property
    def stands_alone(self) -> bool:
        """Whether it is an endpoint without versions, as far as its configuration can be read."""
        return self.plan is None or not self.plan.spec.version

    def conditions(self) -> dict[str, dict[str, object]]:
        """Return what is known of it: the conditions that hold, and the one at which it failed last."""
        at = _CONDITIONS.index(self.failed_at or self.doing)
        found: dict[str, dict[str, object]] = {name: {"ok": True} for name in _CONDITIONS[:at]}
        if self.failed_at:
            found[self.failed_at] = {"ok": False, "reason": self.reason, "is_final": self.is_final}
        return found

    def shown(self) -> dict[str, object]:
        """Return the status as JSON values; ``phase``, ``conditions``, … add detail to ``state``."""
        return {
            "state": self.state,
            "reason": self.reason,
            "is_final": self.is_final,
            "phase": str(self.phase),
            "conditions": self.conditions(),
            "since": self.since,
            "attempts": self.attempts,
        }

    def __repr__(self) -> str:
        return f"<{self.url} {self.fingerprint[:8]} {self.phase}>"


@dataclass(slots=True)
class _Url:
    wanted: Version | None = None
    former: Version | None = None

    @property
    def may_still_serve(self) -> bool:
        """Whether it may still be served without a change. A former version that fails once is not waited for."""
        wanted, former = self.wanted, self.former
        return (wanted is not None and not wanted.is_final) or (former is not None and not former.failed_at)

    def versions(self) -> Iterator[Version]:
        if self.wanted is not None:
            yield self.wanted
        if self.former is not None:
            yield self.former


class Versions:
    """All versions by url, for use by one event loop; readiness asks it (``health.ServedUrls``). ``clock`` returns Unix
    seconds.

    ``give_up`` is called with each version that is no longer wanted and does not serve; the work on it must stop.
    Versions that leave service are appended to ``leaving``; whoever swaps the routes takes them from there.
    """

    def __init__(self, clock: Callable[[], float], give_up: Callable[[Version], None]) -> None:
        self._clock = clock
        self._give_up = give_up
        self._urls: dict[str, _Url] = {}
        self._served: dict[str, Version] = {}
        """The serving version of each url. Read often, changed by ``_move`` only."""
        self._retiring: set[Version] = set()
        self.leaving: list[Version] = []
        self.previously_served: frozenset[str] | None = None
        """Urls that were served before this process started; None if no file says so. Shrinks only."""
        self._waits_until = 0.0

    # Configuration

    def restore(self, former: Mapping[str, EndpointPlan], served: frozenset[str]) -> list[Version]:
        """Begin with what was saved: the former versions, and all urls that were served. Return what must be built."""
        self.previously_served = served
        self._urls = {url: _Url(former=Version(url, plan, self._clock())) for url, plan in former.items()}
        return list(self)

    def configure(self, plans: Mapping[str, EndpointPlan], refusals: Mapping[str, str]) -> list[Version]:
        """Want exactly these versions; return those whose build must begin.

        ``refusals`` maps a url to why its configuration is invalid; a version that serves the url continues.
        """
        for url in [url for url in self._urls if url not in plans and url not in refusals]:
            for version in self._urls.pop(url).versions():
                self._leave(version)
        begun: list[Version] = []
        for url, plan in plans.items():
            begun += self._want(url, plan)
        for url, reason in refusals.items():
            if url not in plans:
                self._refuse(url, reason)
        # If no file says what was served before, assume every configured url was.
        before = self.previously_served
        self.previously_served = frozenset(self._urls) if before is None else before & self._urls.keys()
        return begun

    def _want(self, url: str, plan: EndpointPlan) -> list[Version]:
        of = self._urls.setdefault(url, _Url())
        if of.wanted is not None and of.wanted.fingerprint == plan.fingerprint:
            return []
        if of.former is not None and of.former.fingerprint == plan.fingerprint:
            # Back to the version before: its successor is no longer wanted.
            former, of.former = of.former, None
            self._replace_wanted(of, former)
            return []
        version = Version(url, plan, self._clock())
        self._replace_wanted(of, version)
        return [version]

    def _refuse(self, url: str, reason: str) -> None:
        of = self._urls.setdefault(url, _Url())
        if of.wanted is None or of.wanted.plan is not None:
            self._replace_wanted(of, Version(url, None, self._clock(), reason))
        elif of.wanted.reason != reason:
            of.wanted.reason, of.wanted.since = reason, self._clock()

    def _replace_wanted(self, of: _Url, version: Version) -> None:
        before, of.wanted = of.wanted, version
        if before is None:
            return
        if before.phase is Phase.SERVING:
            of.former = before  # no other version can be former: a serving version has none
        else:
            self._leave(before)

    def _leave(self, version: Version) -> None:
        if version.phase is Phase.SERVING:
            self._move(version, Phase.RETIRING)
            self._retiring.add(version)
            self.leaving.append(version)
        else:
            self._move(version, Phase.GONE)
            self._give_up(version)

    # Progress of builds

    def building(self, version: Version) -> None:
        """Begin an attempt to build or restore a version."""
        version.attempts += 1
        version.doing = "Fetched"

    def step(self, version: Version, condition: ConditionName, reason: str) -> None:
        """Set which condition the attempt works for, and how; a failed version keeps the reason of its failure."""
        version.doing = condition
        if not version.failed_at:
            version.reason = reason

    def loaded(self, version: Version) -> None:
        """Enter the validation of an attempt."""
        if version.phase is Phase.PENDING:
            self._move(version, Phase.LOADED)
            self.step(version, "Validated", "validating")

    def failed(self, version: Version, reason: str, *, is_final: bool = False) -> None:
        """Record that the attempt failed."""
        version.failed_at, version.reason, version.is_final = version.doing, reason, is_final
        if version.phase is Phase.LOADED:
            self._move(version, Phase.PENDING)

    def serve(self, version: Version, endpoint: Endpoint) -> bool:
        """Put the endpoint into service and take the version that it replaces out of service.

        Returns False if the version is no longer wanted; the caller must then close the endpoint.
        """
        if version.phase is Phase.GONE:
            return False
        self.loaded(version)
        self._move(version, Phase.SERVING)
        version.endpoint = endpoint
        version.failed_at, version.reason, version.is_final = None, "", False
        of = self._urls[version.url]
        if version is of.wanted and of.former is not None:
            former, of.former = of.former, None
            self._leave(former)
        return True

    def closed(self, version: Version) -> None:
        """Record that the last request was answered and the endpoint closed."""
        self._move(version, Phase.GONE)
        self._retiring.discard(version)
        version.endpoint = None

    def close(self) -> None:
        """Want nothing: every version leaves."""
        self.configure({}, {})

    def _move(self, version: Version, phase: Phase) -> None:
        if phase not in FOLLOWS[version.phase]:
            raise AssertionError(f"{version!r} cannot become {phase}")
        before, version.phase, version.since = version.phase, phase, self._clock()
        if phase is Phase.SERVING:
            self._served[version.url] = version
        elif before is Phase.SERVING and self._served.get(version.url) is version:
            del self._served[version.url]

    # Queries

    def __iter__(self) -> Iterator[Version]:
        for of in self._urls.values():
            yield from of.versions()

    @property
    def retiring(self) -> frozenset[Version]:
        """Versions that still answer their last requests."""
        return frozenset(self._retiring)

    def served(self) -> dict[str, Version]:
        """Return the serving version of each url."""
        return dict(self._served)

    def endpoints(self) -> dict[str, Endpoint]:
        """Return the endpoint of each served url."""
        return {url: version.endpoint for url, version in self._served.items() if version.endpoint is not None}

    def pending(self) -> dict[str, Version]:
        """Return each wanted version that does not serve, by url."""
        return {
            url: of.wanted
            for url, of in self._urls.items() if of.wanted is not None and of.wanted.phase is not Phase.SERVING
        }  # fmt: skip

    def former(self) -> dict[str, EndpointPlan]:
        """Return the plan of each former version, for ``restore`` in the next process."""
        formers = {url: of.former for url, of in self._urls.items() if of.former is not None}
        return {url: one.plan for url, one in formers.items() if one.plan is not None}

    # Readiness

    def needs(self) -> dict[str, str]:
        """Return each served url with the address of the Triton that it needs, or with an empty string."""
        return {url: one.plan.triton_address if one.plan is not None else "" for url, one in self._served.items()}

    def unserved(self) -> dict[str, str]:
        """Return each url that is configured but not served, with its state and reason."""
        return {
            url: f"{'has' if one.state == 'failed' else 'is'} {one.state}: {one.reason}"
            for url, one in sorted(self.pending().items()) if url not in self._served
        }  # fmt: skip

    def begin_wait(self, seconds: float) -> None:
        """Wait for previously served urls from now on, at most so long."""
        self._waits_until = asyncio.get_running_loop().time() + seconds

    def awaited(self) -> Sequence[str]:
        """Return the urls that start-up still waits for: served before this process started, and may still serve."""
        return [] if asyncio.get_running_loop().time() >= self._waits_until else self._expected()

    def coming(self) -> list[str]:
        """Return the urls that were served before this process started and are in their first build."""
        pending = self.pending()
        return [url for url in self._expected() if url in pending and pending[url].state == "pending"]

    def _expected(self) -> list[str]:
        """Return the previously served urls that may still serve without a change of the configuration."""
        known = [(url, self._urls.get(url)) for url in sorted(self.previously_served or ()) if url not in self._served]
        return [url for url, of in known if of is not None and of.may_still_serve]

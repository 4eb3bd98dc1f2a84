"""Every version of every url: which state it is in, what may follow, and what is served meanwhile. Pure.

    waiting ──► building ──► validating ──► serving ──► retiring ──► gone
                 ▲    │          │             ▲
                 │    ▼          │         restoring
                failed ◄─────────┘

A url has the version that is ``wanted`` (the Task's) and, until that one serves, the ``former``: the version that was
served before it, still in service or being restored after a restart. ``reconcile`` only moves versions; the routes,
readiness, the status and the page read these objects, so they cannot disagree.

What holds after every call, for every url (a property test asks it after random events):

- each version is in exactly one state, and got there by a move of ``FOLLOWS``;
- at most one version serves; it stays until its successor serves or the url is removed;
- a version has an endpoint exactly while it serves or retires, and each endpoint that served is closed once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Final

from gateway.control.compile import EndpointPlan
from gateway.control.last_good import LastGood
from gateway.endpoints.endpoint import Endpoint


class State(StrEnum):
    """Where a version is between its configuration and its end."""

    WAITING = "waiting"
    """Configured; its build begins when it is its turn."""
    BUILDING = "building"
    """Its files are fetched, Triton loads its model, its code is loaded."""
    VALIDATING = "validating"
    """It answers its first requests, which are nobody's; then it serves with the next swap of the routes."""
    RESTORING = "restoring"
    """It served before this process started, the Task wants another one by now: it is built to serve until then."""
    SERVING = "serving"
    FAILED = "failed"
    """The last attempt failed; there is another one after a pause."""
    REFUSED = "refused"
    """Its configuration cannot be used: nothing is tried until that changes."""
    RETIRING = "retiring"
    """Not in the routes any more; its last requests are being answered."""
    GONE = "gone"


FOLLOWS: Final[Mapping[State, frozenset[State]]] = {
    State.WAITING: frozenset({State.BUILDING, State.GONE}),
    State.BUILDING: frozenset({State.VALIDATING, State.FAILED, State.GONE}),
    State.VALIDATING: frozenset({State.SERVING, State.FAILED, State.GONE}),
    State.RESTORING: frozenset({State.SERVING, State.GONE}),
    State.SERVING: frozenset({State.RETIRING}),
    State.FAILED: frozenset({State.BUILDING, State.GONE}),
    State.REFUSED: frozenset({State.GONE}),
    State.RETIRING: frozenset({State.GONE}),
    State.GONE: frozenset(),
}
"""What may follow each state."""


class Version:
    """One version of one url. Read by everybody, changed by ``Versions`` only."""

    __slots__ = (
        "attempts", "endpoint", "failures", "is_final", "last_good", "outside", "plan", "reason", "since", "state",
        "url",
    )  # fmt: skip

    def __init__(self, url: str, plan: EndpointPlan | None, state: State, since: float, reason: str = "") -> None:
        self.url = url
        self.plan = plan
        """How it is built; None if it is refused."""
        self.state = state
        self.since = since
        """When it came into this state (Unix seconds)."""
        self.reason = reason
        """What it is doing, or why it failed: kept over later attempts, until it serves."""
        self.attempts = 0
        self.failures = 0
        self.is_final = state is State.REFUSED
        """Another attempt would end alike everywhere: what is configured, or its model, must be changed."""
        self.endpoint: Endpoint | None = None
        self.last_good: LastGood | None = None
        """How to build it again after a restart; of what has served."""
        self.outside = Outside(self)

    @property
    def fingerprint(self) -> str:
        """Equal for versions that are the same; empty for one that is refused."""
        return self.plan.fingerprint if self.plan is not None else ""

    @property
    def may_come(self) -> bool:
        """Whether it may still serve without anybody changing anything."""
        return not self.is_final and not (self.state is State.RESTORING and self.failures)

    def __repr__(self) -> str:
        return f"<{self.url} {self.fingerprint[:8]} {self.state}>"


class Outside:
    """What callers, the status and the page are told of a version that does not serve: always as it is now."""

    __slots__ = ("_version",)

    def __init__(self, version: Version) -> None:
        self._version = version

    @property
    def url(self) -> str:
        """The url it is for."""
        return self._version.url

    @property
    def state(self) -> str:
        """``building``, ``failed`` or ``refused``. One that failed stays failed until it serves: a new attempt is no
        news to whoever wants to know what is wrong.
        """
        version = self._version
        if version.state is State.REFUSED:
            return "refused"
        return "failed" if version.failures else "building"

    @property
    def reason(self) -> str:
        """What it is doing, or why it failed."""
        return self._version.reason

    @property
    def is_final(self) -> bool:
        """Waiting is no use."""
        return self._version.is_final

    def shown(self) -> dict[str, object]:
        """Return it as in the status; ``phase``, ``since`` and ``attempts`` say more than ``state``."""
        version = self._version
        return {
            "state": self.state, "reason": version.reason, "is_final": version.is_final, "phase": str(version.state),
            "since": version.since, "attempts": version.attempts,
        }  # fmt: skip


@dataclass(slots=True)
class _Url:
    wanted: Version | None = None
    former: Version | None = None

    def versions(self) -> Iterator[Version]:
        if self.wanted is not None:
            yield self.wanted
        if self.former is not None:
            yield self.former


class Versions:
    """All versions by url. One event loop calls it; ``clock`` returns Unix seconds.

    Versions that nobody wants any more are handed to ``give_up`` at once (whatever works on them must stop), and those
    that leave service are in ``leaving`` until whoever swaps the routes has taken them.
    """

    def __init__(self, clock: Callable[[], float], give_up: Callable[[Version], None]) -> None:
        self._clock = clock
        self._give_up = give_up
        self._urls: dict[str, _Url] = {}
        self._served: dict[str, Version] = {}
        """What serves, by url: asked for often, and changed by ``_move`` only."""
        self._families: dict[str, list[str]] = {}
        """Urls of each endpoint name."""
        self._retiring: set[Version] = set()
        self.leaving: list[Version] = []

    # What the Task says

    def configure(
        self,
        plans: Mapping[str, EndpointPlan],
        refusals: Mapping[str, str],
        last_good: Mapping[str, LastGood] | None = None,
    ) -> list[Version]:
        """Want these versions, and nothing else; returns those whose work has to begin.

        ``refusals``: url → why its configuration cannot be used; what served it goes on. ``last_good``: what was served
        before this process started; what the Task does not want in the same form is restored.
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
        for url, former in (last_good or {}).items():
            known = self._urls.get(url)
            if known is None or known.former is not None or url in self._served:
                continue
            if known.wanted is not None and known.wanted.fingerprint == former.plan.fingerprint:
                continue
            known.former = Version(url, former.plan, State.RESTORING, self._clock())
            known.former.last_good = former
            begun.append(known.former)
        self._families = {}
        for url, plan in plans.items():
            self._families.setdefault(plan.spec.endpoint, []).append(url)
        return begun

    def _want(self, url: str, plan: EndpointPlan) -> list[Version]:
        of = self._urls.setdefault(url, _Url())
        if of.wanted is not None and of.wanted.fingerprint == plan.fingerprint:
            return []
        if of.former is not None and of.former.fingerprint == plan.fingerprint and of.former.state is State.SERVING:
            # Back to what serves: the successor it had is not wanted any more.
            former, of.former = of.former, None
            self._replace_wanted(of, former)
            return []
        version = Version(url, plan, State.WAITING, self._clock(), "starting")
        self._replace_wanted(of, version)
        if of.former is not None and of.former.fingerprint == plan.fingerprint:
            self._leave(of.former)  # it is being restored: as what is wanted, it is built
            of.former = None
        return [version]

    def _refuse(self, url: str, reason: str) -> None:
        of = self._urls.setdefault(url, _Url())
        if of.wanted is None or of.wanted.state is not State.REFUSED:
            self._replace_wanted(of, Version(url, None, State.REFUSED, self._clock(), reason))
        elif of.wanted.reason != reason:
            of.wanted.reason, of.wanted.since = reason, self._clock()

    def _replace_wanted(self, of: _Url, version: Version) -> None:
        before, of.wanted = of.wanted, version
        if before is None:
            return
        if before.state is State.SERVING:
            of.former = before  # nothing else can be: a version that serves has no former one
        else:
            self._leave(before)

    def _leave(self, version: Version) -> None:
        if version.state is State.SERVING:
            self._move(version, State.RETIRING)
            self._retiring.add(version)
            self.leaving.append(version)
        else:
            self._move(version, State.GONE)
            self._give_up(version)

    # What becomes of the work on them

    def building(self, version: Version) -> None:
        """An attempt begins: of a version that waits or failed, or to restore one."""
        version.attempts += 1
        if version.state is not State.RESTORING:
            self._move(version, State.BUILDING)

    def step(self, version: Version, reason: str) -> None:
        """Say what the attempt is doing; a version that failed goes on saying why."""
        if not version.failures:
            version.reason = reason

    def validating(self, version: Version) -> None:
        """The attempt has come to the first requests."""
        if version.state is State.BUILDING:
            self._move(version, State.VALIDATING)

    def failed(self, version: Version, reason: str, *, is_final: bool = False) -> None:
        """The attempt failed."""
        version.failures += 1
        version.reason, version.is_final = reason, is_final
        if version.state is not State.RESTORING:
            self._move(version, State.FAILED)

    def successor_failed(self, version: Version, reason: str) -> None:
        """Remember, over a restart too, that ``version`` failed on a request that the version in service answers."""
        former = self.former_of(version)
        if former is not None and former.last_good is not None:
            former.last_good = replace(former.last_good, refused=version.fingerprint, reason=reason)

    def serve(self, version: Version, endpoint: Endpoint, last_good: LastGood) -> bool:
        """The endpoint is in the routes from now on, and what it replaces leaves them.

        False if nobody wants the version any more: the endpoint stays the caller's, who closes it.
        """
        if version.state is State.GONE:
            return False
        self.validating(version)
        self._move(version, State.SERVING)
        version.endpoint = endpoint
        version.reason, version.failures, version.is_final = "", 0, False
        version.last_good = last_good
        of = self._urls[version.url]
        if version is of.wanted and of.former is not None:
            former, of.former = of.former, None
            self._leave(former)
        return True

    def closed(self, version: Version) -> None:
        """Its last request is answered and its endpoint closed."""
        self._move(version, State.GONE)
        self._retiring.discard(version)
        version.endpoint = None

    def close(self) -> None:
        """Want nothing: everything leaves."""
        self.configure({}, {})

    def _move(self, version: Version, state: State) -> None:
        if state not in FOLLOWS[version.state]:
            raise AssertionError(f"{version!r} cannot become {state}")
        before, version.state, version.since = version.state, state, self._clock()
        if state is State.SERVING:
            self._served[version.url] = version
        elif before is State.SERVING and self._served.get(version.url) is version:
            del self._served[version.url]

    # What everybody reads

    def __iter__(self) -> Iterator[Version]:
        for of in self._urls.values():
            yield from of.versions()

    def of(self, url: str) -> Iterable[Version]:
        """Return the versions of one url: the one that is wanted, then the former one."""
        return self._urls[url].versions() if url in self._urls else ()

    @property
    def urls(self) -> frozenset[str]:
        """Everything that is configured."""
        return frozenset(self._urls)

    @property
    def retiring(self) -> frozenset[Version]:
        """Versions whose last requests are being answered."""
        return frozenset(self._retiring)

    def serving(self, url: str) -> Version | None:
        """Return what serves this url."""
        return self._served.get(url)

    def served(self) -> dict[str, Version]:
        """Return what serves, by url."""
        return dict(self._served)

    def endpoints(self) -> dict[str, Endpoint]:
        """Return what requests can be answered by, by url."""
        return {url: version.endpoint for url, version in self._served.items() if version.endpoint is not None}

    def pending(self) -> dict[str, Outside]:
        """Return what is wanted and does not serve, by url."""
        return {
            url: of.wanted.outside
            for url, of in self._urls.items() if of.wanted is not None and of.wanted.state is not State.SERVING
        }  # fmt: skip

    def family(self, name: str) -> list[Version]:
        """Return the versions of one endpoint name that serve."""
        found = (self.serving(url) for url in self._families.get(name, ()))
        return [version for version in found if version is not None]

    def former_of(self, version: Version) -> Version | None:
        """Return what serves, or is restored, until this version serves."""
        of = self._urls.get(version.url)
        return of.former if of is not None and of.wanted is version else None

    def last_good(self) -> dict[str, LastGood]:
        """Return how to build again what serves, or is restored, although the Task wants something else."""
        return {
            url: of.former.last_good
            for url, of in self._urls.items() if of.former is not None and of.former.last_good is not None
        }  # fmt: skip

    def may_come(self, url: str) -> bool:
        """Whether a url that is not served may still be, without anybody changing anything."""
        of = self._urls.get(url)
        return of is not None and url not in self._served and any(version.may_come for version in of.versions())

"""The states of versions: which moves are possible, what is served meanwhile, and that nothing leaks."""

# ruff: noqa: D103 - a test's name states its rule

from __future__ import annotations

from typing import Any, cast

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from gateway.control.compile import EndpointPlan
from gateway.control.version import Phase, Version, Versions
from gateway.spec import EndpointSpec


def plan(url: str, fingerprint: str) -> EndpointPlan:
    endpoint, _, version = url.partition("/")
    spec = EndpointSpec(url, endpoint, version, "triton")
    return EndpointPlan(spec, "t:8001", fingerprint)


class World:
    """Versions with a clock that is moved by hand, and the versions being worked on."""

    def __init__(self) -> None:
        self.now = 0.0
        self.given_up: list[Version] = []
        self.versions = Versions(lambda: self.now, self.given_up.append)

    def want(self, refused: dict[str, str] | None = None, /, **wanted: str) -> list[Version]:
        return self.versions.configure({url: plan(url, it) for url, it in wanted.items()}, refused or {})

    def serve(self, version: Version) -> Any:
        endpoint: Any = object()
        self.versions.building(version)
        assert self.versions.serve(version, endpoint)
        return endpoint


def test_what_serves_stays_until_its_successor_does() -> None:
    """Through its failures, an invalid configuration, and back again, for which nothing is built; then it leaves."""
    world = World()
    [first] = world.want(e="a")
    endpoint = world.serve(first)
    [second] = world.want(e="b")
    world.versions.building(second)
    world.versions.failed(second, "no", is_final=True)
    assert ("failed", "no", True) == (second.state, second.reason, second.is_final)
    assert [] == world.want(e="a")
    assert ([second], {}) == (world.given_up, world.versions.pending())
    world.want({"e": "has no model"})
    assert ("refused", "has no model") == (world.versions.pending()["e"].state, world.versions.pending()["e"].reason)
    assert ({}, {"e": endpoint}) == (world.versions.unserved(), world.versions.endpoints())
    [third] = world.want(e="c")
    world.serve(third)
    assert [first] == world.versions.leaving
    world.versions.closed(first)
    assert (Phase.GONE, None) == (first.phase, first.endpoint)


def test_a_failed_version_keeps_its_reason_until_it_serves() -> None:
    """A new attempt does not hide the reason; each phase has the time of its beginning."""
    world = World()
    [version] = world.want(e="a")
    world.versions.building(version)
    world.versions.step(version, "Loaded", "waiting for Triton")
    assert ({"Fetched": {"ok": True}}, "waiting for Triton") == (version.conditions(), version.reason)
    world.versions.failed(version, "no model", is_final=True)
    world.versions.building(version)
    world.versions.step(version, "Fetched", "downloading")
    shown = version.shown()
    assert ("failed", "no model", "pending", 2) == tuple(shown[k] for k in ("state", "reason", "phase", "attempts"))
    assert {"Fetched": {"ok": True}, "Loaded": {"ok": False, "reason": "no model", "is_final": True}} == shown[
        "conditions"
    ]
    world.now = 2
    world.versions.loaded(version)
    assert ("loaded", 2) == (version.phase, version.since)
    world.versions.failed(version, "wrong answer")
    world.versions.building(version)
    assert [True, True, False] == [one["ok"] for one in version.conditions().values()]
    assert ("pending", "wrong answer") == (version.phase, version.conditions()["Validated"]["reason"])
    endpoint = world.serve(version)
    assert ({"e": endpoint}, {}) == (world.versions.endpoints(), world.versions.pending())


URLS = st.sampled_from(["e", "f", "g/1", "g/2"])


class AnyOrder(RuleBasedStateMachine):
    """Random sequences of changes, attempts, failures and ends."""

    def __init__(self) -> None:
        super().__init__()
        self.world = World()
        self.versions = self.world.versions
        self.worked: list[Version] = []
        self.open: set[object] = set()
        self.served: dict[str, object] = {}

    @initialize(stored=st.dictionaries(URLS, st.sampled_from("abc"), max_size=3))
    def restore(self, stored: dict[str, str]) -> None:
        self.worked += self.versions.restore({url: plan(url, it) for url, it in stored.items()}, frozenset(stored))
        self.configure({}, dict.fromkeys(stored, "not yet read"))

    @rule(
        wanted=st.dictionaries(URLS, st.sampled_from("abc"), max_size=4),
        refused=st.dictionaries(URLS, st.sampled_from(["x", "y"]), max_size=2),
    )
    def configure(self, wanted: dict[str, str], refused: dict[str, str]) -> None:
        before = self.versions.endpoints()
        self.worked += self.versions.configure({url: plan(url, it) for url, it in wanted.items()}, refused)
        after = self.versions.endpoints()
        assert {url: one for url, one in before.items() if url in {*wanted, *refused}} == after
        assert {*wanted, *refused} == {version.url for version in self.versions}

    def _any(self, data: Any) -> Version:
        return cast("Version", data.draw(st.sampled_from(self.worked)))

    @precondition(lambda self: self.worked)
    @rule(data=st.data(), is_final=st.booleans())
    def fail(self, data: Any, is_final: bool) -> None:
        version = self._any(data)
        if version.phase in (Phase.PENDING, Phase.LOADED):
            self.versions.failed(version, "failed", is_final=is_final)

    @precondition(lambda self: self.worked)
    @rule(data=st.data())
    def validate(self, data: Any) -> None:
        version = self._any(data)
        if version.phase is Phase.PENDING:
            self.versions.building(version)
            self.versions.loaded(version)

    @precondition(lambda self: self.worked)
    @rule(data=st.data())
    def serve(self, data: Any) -> None:
        version = self._any(data)
        if version.phase in (Phase.PENDING, Phase.LOADED, Phase.GONE) and not version.endpoint:
            endpoint: Any = object()
            if self.versions.serve(version, endpoint):
                self.open.add(endpoint)

    @rule()
    def retire(self) -> None:
        leaving, self.versions.leaving = self.versions.leaving, []
        for version in leaving:
            self.open.remove(version.endpoint)  # closed once
            self.versions.closed(version)

    @invariant()
    def one_state_each(self) -> None:
        seen: list[Version] = []
        for url in {version.url for version in self.versions}:
            of = [version for version in self.versions if version.url == url]
            seen += of
            assert sum(version.phase is Phase.SERVING for version in of) <= 1
            assert len(of) <= 2
            for version in of:
                assert version.phase not in (Phase.RETIRING, Phase.GONE)
                assert (version.endpoint is not None) == (version.phase is Phase.SERVING)
            assert [url in self.versions.pending()] == [of[0].phase is not Phase.SERVING]
        assert len(seen) == len(set(seen))
        assert {version for version in self.worked if version.phase is Phase.GONE} >= set(self.world.given_up) - {
            version for version in self.world.given_up if version.plan is None
        }

    @invariant()
    def what_is_open_serves_or_leaves(self) -> None:
        held = [*self.versions.endpoints().values(), *(version.endpoint for version in self.versions.leaving)]
        assert self.open == set(held)
        assert len(held) == len(set(held))

    @invariant()
    def work_goes_on_for_what_is_wanted_only(self) -> None:
        alive = {one for one in self.versions if one.phase is not Phase.SERVING and one.plan is not None}
        assert alive <= set(self.worked)
        assert not alive & set(self.world.given_up)

    def teardown(self) -> None:
        self.versions.close()
        self.retire()
        assert not self.open
        assert [] == list(self.versions)


TestAnyOrder = AnyOrder.TestCase
TestAnyOrder.settings = settings(max_examples=100, stateful_step_count=30, deadline=None)

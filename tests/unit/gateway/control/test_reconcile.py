"""The control loop: which builds it starts, what it does with their results, and that it leaves nothing open."""

# ruff: noqa: D103 - a test's name states its rule

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any, cast

import pytest

from gateway.control import reconcile
from gateway.control.builds import pause
from gateway.control.compile import EndpointPlan
from gateway.control.reconcile import Reconciler
from gateway.control.threads import ControlThreads
from gateway.control.tritons import Tritons
from gateway.control.version import Phase, Progress
from gateway.errors import AnswersDisagree, BackendUnavailable, SpecFault
from gateway.handlers.endpoint import Endpoint, Identity
from gateway.handlers.shadow import Mirror
from gateway.health import Health
from gateway.metrics.drift import References
from gateway.metrics.observer import Observer
from gateway.path.routing import RoutingTable
from gateway.registry.cache import ArtifactCache, Saved, SpecStore
from gateway.settings import Settings
from gateway.spec import EndpointSpec, ServingTask
from tests.fakes import FakeBackend, FakeRegistry
from tests.waiting import LIMIT_S, soon


class Handler:
    takes_bytes = False

    def __init__(self) -> None:
        self.closed = 0

    async def answer(self, body: object, *_: object) -> object:
        return body

    async def close(self) -> None:
        self.closed += 1


class FakeAssembler:
    """Builds at once, fails or waits, as set for each url."""

    def __init__(self) -> None:
        self.begun: list[str] = []
        self.made: list[Handler] = []
        self.fails: dict[str, Exception] = {}
        self.waits: dict[str, asyncio.Event] = {}

    async def build(
        self, plan: EndpointPlan, progress: Progress, *, validating: Callable[[], None] = lambda: None
    ) -> Endpoint:
        url = plan.spec.url
        self.begun.append(url)
        progress("Fetched", "building it")
        if url in self.waits:
            await self.waits[url].wait()
        if url in self.fails:
            raise self.fails[url]
        validating()
        self.made.append(Handler())
        identity = Identity(url, plan.spec.endpoint, plan.spec.version)
        return Endpoint(identity, cast("Any", self.made[-1]))


class World:
    """A reconciler over a registry in memory and a fake assembler."""

    def __init__(self, folder: Path) -> None:
        self.registry = FakeRegistry()
        self.assembler = FakeAssembler()
        self.table = RoutingTable()
        self.health = Health()
        self.threads = ControlThreads()
        observer = Observer()
        self.follower = Reconciler(
            Settings(triton_grpc="t:8001", poll_frequency=0.5),
            registry=self.registry, store=SpecStore(folder),
            cache=ArtifactCache(folder / "cache", self.registry),
            assembler=cast("Any", self.assembler), table=self.table, health=self.health, observer=observer,
            tritons=Tritons(lambda *_: FakeBackend()), references=References(folder / "references"),
            mirror=Mirror(observer, lambda _: lambda: None, timeout=1.0),
            threads=self.threads,
        )  # fmt: skip

    def want(self, *urls: str, **fields: str) -> None:
        self.registry.endpoints.clear()
        for url in urls:
            self.registry.add_endpoint(url, None, engine="custom", preprocess_artifact="code", **fields)

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        loop = asyncio.create_task(self.follower.run())
        try:
            yield
        finally:
            loop.cancel()
            await asyncio.gather(loop, return_exceptions=True)
            await self.follower.close()
            self.threads.close()


@pytest.fixture
def world(tmp_path: Path) -> World:
    made = World(tmp_path)
    (tmp_path / "code.py").write_text("class Preprocess: pass")
    made.registry.add_artifact("code", tmp_path / "code.py", sha256="0" * 64)
    return made


async def test_wanted_versions_are_served_and_removed_ones_closed(world: World) -> None:
    """Each is closed once, and nothing is left open at the end."""
    world.want("a", "b")
    async with world.running():
        await soon(lambda: {"a", "b"} == set(world.table.current.endpoints))
        world.want("b")
        await soon(lambda: [1] == [one.closed for one in world.assembler.made if one.closed])
        assert {"b"} == set(world.table.current.endpoints)
    assert [1, 1] == [one.closed for one in world.assembler.made]
    assert [] == [*world.follower.versions, *world.follower.versions.retiring]


async def test_builds_begin_one_by_one(world: World) -> None:
    """The event loop gets its turn between them."""
    urls, begun = [f"e{number}" for number in range(100)], [0]
    world.want(*urls)

    async def count() -> None:
        while begun[-1] < len(urls):
            begun.append(len(world.assembler.begun))
            await asyncio.sleep(0)

    async with world.running():
        await count()
    assert 1 == max(after - before for before, after in pairwise(begun))
    assert urls == world.assembler.begun


async def test_a_model_that_the_task_names_no_more_is_forgotten(world: World, tmp_path: Path) -> None:
    """After ten thousand versions of auto-update a change costs what it cost at the start."""
    async with world.running():
        for name in ("m1", "m2"):
            (tmp_path / name).write_text(name)
            world.registry.add_model(name, tmp_path / name)
            world.registry.add_endpoint("a", name, engine="custom", preprocess_artifact="code")
            await soon(lambda name=name: {name} == world.follower._models.keys())


async def test_an_endpoint_that_is_ready_too_late_is_closed(world: World) -> None:
    """Its version was removed between the end of the build and the swap of the routes."""
    world.want("a")
    async with world.running():
        await soon(lambda: "a" in world.table.current.endpoints)
        [version] = world.follower.versions
        late = Handler()
        endpoint = Endpoint(Identity("a", "a", ""), cast("Any", late))
        begun = world.follower.versions.configure({"a": _plan("a", "other")}, {})
        world.follower._finish(begun[0], endpoint)
        world.follower.versions.configure({"a": cast("EndpointPlan", version.plan)}, {})
        await soon(lambda: late.closed == 1)
        assert [version] == list(world.follower.versions)
        assert Phase.SERVING is version.phase


async def test_the_version_before_is_not_forgotten_if_the_process_stops_while_it_is_stored(
    world: World, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """What changed last is stored after that, while everything is being retired."""
    world.want("a")
    monkeypatch.setattr(reconcile, "_LAST_SAVE_S", LIMIT_S)
    is_storing, may_store = threading.Event(), threading.Event()
    store = world.follower._store.save

    def slow(*args: Any) -> None:
        is_storing.set()
        may_store.wait(LIMIT_S)
        store(*args)

    async with world.running():
        await soon(lambda: "a" in world.table.current.endpoints)
        world.assembler.fails["a"] = SpecFault("it cannot be built")
        world.want("a", auxiliary_cfg={"gateway": {"x": "1"}})  # type: ignore[arg-type]
        await soon(lambda: world.follower.versions.unserved() == {} and "a" in world.follower.versions.former())
        monkeypatch.setattr(world.follower._store, "save", slow)
        await soon(is_storing.is_set)
        asyncio.get_running_loop().call_later(0.1, may_store.set)
    saved = SpecStore(tmp_path).load()
    assert saved is not None
    assert {"a"} == saved.former.keys()


async def test_cached_files_that_no_version_needs_are_deleted_every_ten_minutes(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not with every look at the registry."""
    kept: list[set[str]] = []
    monkeypatch.setattr(world.follower._cache, "keep", lambda _models, code: kept.append({one.key for one in code}))
    world.want("a")
    async with world.running():
        await soon(lambda: "a" in world.table.current.endpoints and kept)
        await world.follower.look()
        assert [{"code"}] == kept
        monkeypatch.setattr(reconcile, "_TIDY_S", 0.0)
        await soon(lambda: len(kept) > 2)


async def test_a_failed_look_is_reported_and_changes_nothing(
    world: World, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Also one that fails because of a bug; and an unreadable saved state does not end the loop."""
    SpecStore(tmp_path).save(Saved(ServingTask(sections={"endpoints": 5}), {}))  # type: ignore[dict-item]
    world.registry.is_up = False
    world.want("a")
    async with world.running():
        await soon(lambda: "is down" in world.health.registry_error)
        world.registry.is_up = True
        await soon(lambda: "a" in world.table.current.endpoints)
        monkeypatch.setattr(reconcile, "decode", None)
        monkeypatch.setattr(world.follower, "_records_due", 0.0)
        await soon(lambda: "unexpected" in world.health.registry_error)
        assert "the configuration may be out of date" in world.health.degraded()[0]
        assert {"a"} == set(world.table.current.endpoints)
        monkeypatch.undo()
        await soon(lambda: world.health.registry_error == "")


def test_the_pause_between_attempts_grows_up_to_a_bound() -> None:
    """After a failed validation the bound is higher."""
    for error, most in ((BackendUnavailable("away"), 30.0), (SpecFault("no"), 30.0), (AnswersDisagree("other"), 300.0)):
        pauses = [pause(failures, error.kind) for failures in range(1, 40)]
        assert ([1.0, 2.0, 4.0], sorted(pauses), most) == (pauses[:3], pauses, pauses[-1])


def _plan(url: str, fingerprint: str) -> EndpointPlan:
    endpoint, _, version = url.partition("/")
    return EndpointPlan(EndpointSpec(url, endpoint, version, "custom"), "t:8001", fingerprint)

"""Building an endpoint from a plan: a build that does not end with an endpoint closes everything that it opened."""

# ruff: noqa: D103 - a test's name states its rule

from __future__ import annotations

import asyncio
import contextlib
import json
import zipfile
from pathlib import Path
from types import MappingProxyType
from typing import Any, cast

import pytest

from gateway.batching.entries import BatchLimits
from gateway.control.assemble import Assembler, assemble_snapshot, refusals
from gateway.control.compile import EndpointPlan, compile_spec
from gateway.control.hooks import HookBuilder
from gateway.control.reports import Reports
from gateway.control.threads import ControlThreads
from gateway.control.version import Version
from gateway.errors import AnswersDisagree, GatewayError
from gateway.handlers.endpoint import ask_version
from gateway.metrics import catalog
from gateway.metrics.accumulator import Histogram, Series
from gateway.metrics.observer import Observer
from gateway.path.canary import weighted
from gateway.path.routing import Snapshot
from gateway.registry.cache import ArtifactCache
from gateway.spec import Fault, decode, triton_model_name
from tests.fakes import FakeBackend, FakeRegistry
from tests.inline import Inline


def _ignore(_condition: str, _step: str) -> None:
    """Take a build's progress."""


class Threads(ControlThreads):
    def __init__(self) -> None:
        self.builds = self.downloads = self.installs = cast("Any", Inline())


class Handler:
    """A hook's handler that answers after some steps of the event loop."""

    takes_bytes = False

    def __init__(self) -> None:
        self.closed = 0

    async def answer(self, body: object, *_: object) -> object:
        await asyncio.sleep(0)
        return body

    async def close(self) -> None:
        await asyncio.sleep(0)
        self.closed += 1


class Hooks:
    """Starts handlers and remembers all of them."""

    def __init__(self) -> None:
        self.started: list[Handler] = []

    def take_options(self, *_: object) -> tuple[str, None]:
        return "process", None

    async def build(self, *_: object) -> tuple[Handler, dict[str, object]]:
        await asyncio.sleep(0)
        self.started.append(Handler())
        return self.started[-1], {"task": "preprocess code"}


def assembler_of(registry: FakeRegistry, cache: Path, backend: FakeBackend, hooks: Hooks | None = None) -> Assembler:
    return Assembler(
        reports=Reports(registry.reports, Inline()),
        cache=ArtifactCache(cache, registry),
        backend_for=lambda *_: backend, observer=Observer(), limits=BatchLimits(),
        word_cache_words=0,
        hooks=cast("Any", hooks or HookBuilder(cast("Any", None), cast("Any", Inline()))),
        ready_timeout=1,
        threads=cast("Any", Inline()), control=Threads(), keep_place=lambda: lambda: None,
    )  # fmt: skip


def zipped(folder: Path, **members: str) -> Path:
    """Return a zip with these members; ``__`` in a name is a dot."""
    with zipfile.ZipFile(folder / "m.zip", "w") as packed:
        for name, text in members.items():
            packed.writestr(name.replace("__", "."), text)
    return folder / "m.zip"


def plan_of(registry: FakeRegistry, url: str) -> EndpointPlan:
    return compile_spec(decode(registry.task()), default_triton="t:8001", models=registry.models).endpoints[url]


def made(folder: Path, answer: object) -> tuple[Assembler, EndpointPlan, Hooks]:
    """Return an assembler, a plan for a model with code and samples, and its hooks."""
    registry, hooks = FakeRegistry(), Hooks()
    samples = json.dumps({"samples": [{"body": {"x": 1}, "answer": answer}]})
    archive = zipped(folder, preprocess__py="class Preprocess: pass", warmup__json=samples)
    registry.add_model("m", archive, is_package=True)
    registry.add_endpoint("h", "m", engine="custom")
    return assembler_of(registry, folder / "cache", FakeBackend(), hooks), plan_of(registry, "h"), hooks


async def test_a_build_cancelled_at_any_step_leaves_nothing_open(tmp_path: Path) -> None:
    """Also if it is cancelled just after its last step."""
    assembler, plan, hooks = made(tmp_path, {"x": 1})
    steps = 0
    while True:
        before = len(hooks.started)
        build = asyncio.ensure_future(assembler.build(plan, _ignore))
        for _ in range(steps):
            await asyncio.sleep(0)
        if build.done():
            break
        build.cancel()
        endpoint = None
        with contextlib.suppress(asyncio.CancelledError):
            endpoint = await build
        assert endpoint is None
        assert [1] * (len(hooks.started) - before) == [handler.closed for handler in hooks.started[before:]]
        steps += 1
    assert steps >= 10
    assert 0 == hooks.started[-1].closed
    assert "h" == build.result().identity.url


async def test_a_build_that_fails_leaves_nothing_open(tmp_path: Path) -> None:
    """Here the samples are answered otherwise."""
    assembler, plan, hooks = made(tmp_path, {"x": 2})
    with pytest.raises(AnswersDisagree):
        await assembler.build(plan, _ignore)
    assert [1] == [handler.closed for handler in hooks.started]


def test_a_canary_without_a_route_is_as_its_first_version_or_refused() -> None:
    """Unless its last route can still be taken. A rule over a prefix may match a version later, so waiting helps."""
    registry = FakeRegistry()
    registry.add_endpoint("e", "m", version="1")
    registry.canary = {
        "c": {"weights": [0, 1], "load_endpoints": ["gone", "e/1"]}, "bad": {"weights": [0], "load_endpoints": ["no"]},
        "later": {"weights": [1], "load_endpoint_prefix": "auto/"},
    }  # fmt: skip
    faults = [Fault("endpoint e/1", "no model"), Fault("canary c", "no weights"), Fault("records", "unreadable")]
    assert {"e/1": "no model"} == refusals(faults)
    plan = compile_spec(decode(registry.task()), default_triton="t:8001")
    assert {"canary c", "canary bad"} <= {fault.subject for fault in plan.faults}
    pending = {"e/1": Version("e/1", plan.endpoints["e/1"], 0.0)}
    found = cast("dict[str, Version]", assemble_snapshot(plan, {}, pending, Snapshot()).pending)
    assert found["c"] is pending["e/1"]
    assert [("refused", True), ("refused", False)] == [(found[x].state, found[x].is_final) for x in ("bad", "later")]
    route = weighted([("e/1", 1.0)])
    before, built = Snapshot(canaries=MappingProxyType({"bad": route})), cast("Any", {"e/1": object()})
    assert route is assemble_snapshot(plan, built, {}, before).canaries["bad"]
    assert {"bad"} <= assemble_snapshot(plan, {}, pending, before).pending.keys()


def tensors(folder: Path, **members: str) -> tuple[Assembler, EndpointPlan, FakeBackend, str]:
    """Return an assembler, a plan for a model in Triton, the backend that lacks it, and its name there."""
    registry, backend = FakeRegistry(), FakeBackend()
    registry.add_model("m", zipped(folder, model__onnx="weights", **members), is_package=True)
    registry.add_endpoint("t", "m", auxiliary_cfg={"gateway": {"unload_after": "30m"}})
    plan = plan_of(registry, "t")
    return assembler_of(registry, folder / "cache", backend), plan, backend, triton_model_name(plan.spec, plan.record)


def load(backend: FakeBackend, name: str) -> None:
    backend.add(name, {"x": "int64"}, {"y": "int64"}, lambda inputs: {"y": inputs["x"]})


@pytest.mark.parametrize("is_loaded", [True, False])
async def test_a_models_place_is_given_back_with_its_version(tmp_path: Path, is_loaded: bool) -> None:
    """A gateway that runs for months keeps nothing of versions that failed or were retired."""
    assembler, plan, backend, name = tensors(tmp_path)
    if is_loaded:
        load(backend, name)
        endpoint = await assembler.build(plan, _ignore)
        assert 1 == backend.cold[name]
        await endpoint.retire()
    else:
        with pytest.raises(GatewayError):
            await assembler.build(plan, _ignore)
    assert 0 == backend.cold[name]


EACH = "class Preprocess:\n    def preprocess(self, body, state, s=None):\n        return body['x']\n"


@pytest.mark.parametrize("members", [{}, {"preprocess__py": EACH}], ids=["tensors", "hook"])
async def test_calls_that_requests_wait_for_are_counted(tmp_path: Path, members: dict[str, str]) -> None:
    """Autoscalers read the waits of versions whose calls are counted: without, their load asks for no Triton."""
    assembler, plan, backend, name = tensors(tmp_path, **members)
    load(backend, name)
    endpoint = await assembler.build(plan, _ignore)
    for rows in (1, 3):
        await ask_version(endpoint, {"x": [[number] for number in range(rows)]}, 5)
    assert [(name, 1), (name, 3)] == backend.calls
    counts, rows = cast("Histogram", assembler._observer.snapshot()[Series(catalog.BATCH_ROWS.name, ("t", ""))]).read()
    assert (2, 4) == (sum(counts), rows)
    await endpoint.retire()

"""One writer: each automatic write to ClearML, counted per process at the API, of all that ``up`` runs.

Controller, model sync and gateway are the real ones, each with a registry of its own on a real control plane; only
Triton is played. People's commands (the stock CLI and ours) run as processes of their own and do not count.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from deploy.controller.rollouts import steps
from deploy.controller.rollouts.record import Request, asked, stored
from deploy.controller.run import made
from deploy.sync.model_folder.execution import Tuning
from deploy.sync.reconcile import ModelSync
from deploy.sync.repository import ModelRepository
from deploy.sync.settings import SyncSettings
from gateway.app import Gateway
from gateway.control.load_requests import LoadRequests
from gateway.registry.cache import ArtifactCache, SpecStore
from gateway.registry.clearml import ClearMLRegistry
from gateway.settings import Settings
from gateway.spec import decode, records_of, triton_model_name
from tests import tiny
from tests.fakes import FakeBackend
from tests.stock import Client
from tests.unit.deploy.sync.test_reconcile import Triton
from tests.waiting import LIMIT_S

pytestmark = [pytest.mark.integration, pytest.mark.long]


class Recording(ClearMLRegistry):
    """A registry that notes what it is asked to write: the kinds of records, or the call."""

    def __init__(self, task: str) -> None:
        self.later = 0.0
        super().__init__(task, clock=lambda: time.monotonic() + self.later)
        self.written: set[str] = set()

    def call(self, service: str, action: str, body: Mapping[str, Any]) -> dict[str, Any]:
        if action in ("edit_hyper_params", "delete_hyper_params"):
            self.written |= {str(item["section"]) for item in body["hyperparams"]}
        elif action == "edit_configuration":
            self.written |= {f"section {item['name']}" for item in body["configuration"]}
        elif action == "create":
            self.written |= {f"Task {tag}" for tag in body["system_tags"]}
        elif not action.startswith("get_"):
            self.written.add(f"{service}.{action}")
        return super().call(service, action, body)

    def report(self, events: Any) -> None:
        self.written.add("events")
        super().report(events)


def _doubled(given: dict[str, Any]) -> dict[str, Any]:
    return {"y": 2 * given["x"]}


class World:
    """The three processes, stepped together."""

    def __init__(self, client: Client, folder: Path) -> None:
        self.client = client
        self.registries = {name: Recording(client.task) for name in ("controller", "sync", "gateway")}
        self.controller = made(self.registries["controller"], 0.1, (), lambda _: None)
        settings = SyncSettings(
            folder / "sync", folder / "models", "triton:8001", engine="python", tuning=Tuning(instances=1), poll_s=0.1
        )
        self.triton = Triton(folder / "models")
        self.sync = ModelSync(
            settings, self.registries["sync"], cache=ArtifactCache(folder / "cache", self.registries["sync"]),
            store=SpecStore(folder / "sync"), triton=self.triton, repository=ModelRepository(folder / "models"),
            stubs=lambda _: {},
        )  # fmt: skip
        self.backend = FakeBackend()
        self.gateway = Gateway(
            Settings(
                state_dir=folder / "gateway", poll_frequency="200ms", triton_grpc="fake:8001", keys_from_registry=True,
            ),
            registry=self.registries["gateway"], make_backend=lambda *_: self.backend,
        )  # fmt: skip
        self.load_requests = LoadRequests(self.registries["gateway"].ledger)
        """What the gateway's connection to Triton calls when a model is asked for that was unloaded."""

    def names(self) -> dict[str, str]:
        """The name in Triton of each endpoint."""
        registry = self.registries["sync"]
        return {
            url: triton_model_name(one, registry.model(str(one.model_id)))
            for url, one in decode(registry.task()).endpoints.items()
        }

    def records(self, kind: str) -> Mapping[str, Mapping[str, Any]]:
        """What is recorded."""
        return records_of(self.registries["controller"].task(), kind)

    async def until(self, fact: Callable[[], bool], what: str) -> None:
        """Step controller and model sync until ``fact`` holds, beside the gateway."""
        deadline = time.monotonic() + LIMIT_S
        while not await asyncio.to_thread(fact):
            assert time.monotonic() < deadline, what
            await asyncio.to_thread(self.sync.step)
            await asyncio.to_thread(self.controller.step)
            for name in self.triton.states:
                if name not in self.backend.models:
                    self.backend.add(name, {"x": "float32"}, {"y": "float32"}, _doubled)
            await asyncio.sleep(0.05)


async def test_only_the_controller_decides_and_others_write_what_is_theirs(client: Client, tmp_path: Path) -> None:
    """Auto-update, a default, contents, a rollout's end, a key, a cold model, a silence."""
    client.create("writers")
    model = client.upload("one", tiny.multiplying(tmp_path / "one.onnx", 2.0))
    for version in ("1", "2"):
        client.stock("model", "add", "--engine", "triton", "--endpoint", "e", "--version", version, "--model-id",
                     model, "--aux-config", "gateway.unload_after=3600", *tiny.TENSORS)  # fmt: skip
    client.stock("model", "auto-update", "--engine", "triton", "--endpoint", "auto", "--name", "newest",
                 "--project", "auto", "--published", "--max-versions", "2", *tiny.TENSORS)  # fmt: skip
    client.stock("model", "canary", "--endpoint", "e", "--weights", "0.5", "0.5", "--input-endpoints", "e/1", "e/2")
    world = World(client, tmp_path)
    world.sync.open()
    person = ClearMLRegistry(client.task)
    async with world.gateway.running():
        served = world.gateway.table
        await world.until(lambda: {"e/1", "e/2"} <= set(served.current.endpoints), "versions")
        await world.until(lambda: model in world.records("content_hash"), "a content")
        client.upload("newest", tiny.multiplying(tmp_path / "newest.onnx", 3.0), project="auto")
        await world.until(lambda: "auto/1" in served.current.endpoints, "auto-update")
        client.ours("canary", "set", "--endpoint", "e", "2=10", "1=90")
        await world.until(lambda: served.current.canaries["e"].shares.get("e/2") == 0.1, "decided weights")
        # a rollout that another controller began, and a person's request to end it
        begun = steps.begun(steps.Rollout("e", "e/2", "e/1", steps=(10.0, 100.0)), "first", time.time())
        person.ledger.write([stored(begun), asked("e", Request("second", "abort", "ann"))])
        weighted = person.task().sections["canary"]
        await world.until(lambda: person.task().sections["canary"] != weighted, "weights of an ended rollout")
        client.ours("keys", "create", "--registry", "--tenant", "a")
        cold = world.names()["e/1"]
        world.load_requests.make(cold)
        await world.until(lambda: cold in world.records("load_request"), "a load request")

        def is_kept_alive() -> bool:
            for one in world.registries.values():
                one.later += 600.0  # ten minutes more since anybody has heard of the serving Task
            return any("tasks.ping" in one.written for one in world.registries.values())

        await world.until(is_kept_alive, "a keep-alive")
    world.sync.close()
    written = {name: registry.written - {"tasks.ping"} for name, registry in world.registries.items()}
    homes = {"Task triton-gateway-records", "Task triton-gateway-reports"}  # made by whoever writes there first
    assert ({"load_request"}, {"report"}) == (written["gateway"] - homes, written["sync"] - homes)
    assert written["controller"] >= {
        "leader", "version_number", "content_hash", "default_version", "rollout", "section model_monitoring_eps",
        "section canary",
    }  # fmt: skip

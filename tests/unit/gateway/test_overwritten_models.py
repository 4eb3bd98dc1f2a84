"""A model's bytes must be the recorded ones. Others under the same id are refused by name."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from gateway.registry.cache import ArtifactCache
from gateway.registry.ledger import Record
from gateway.spec import Content, decode
from tests.fakes import FakeRegistry


@pytest.fixture
def registry(tmp_path: Path) -> FakeRegistry:
    """One endpoint and its model, one file."""
    registry = FakeRegistry()
    (tmp_path / "store.bin").write_bytes(b"first")
    registry.add_model("m", tmp_path / "store.bin", name="film")
    registry.add_endpoint("e", "m")
    return registry


def record(registry: FakeRegistry, root: Path, model_id: str = "m", **more: Any) -> None:
    """Record what is in the file store now as the model's content, as the controller does."""
    model, looks = registry.model(model_id), ArtifactCache(root / "recording", registry)
    looks.model(model)
    content = Content(model.id, model.name, model.uri, **looks.hashes(model), **more)
    registry.ledger.write([Record("content_hash", model_id, asdict(content))])
    shutil.rmtree(root / "recording")


def faults(registry: FakeRegistry) -> str:
    """Return each gateway's faults of the configuration."""
    return " ".join(f"{f.subject} {f.message}" for f in decode(registry.task()).faults)


def test_every_gateway_reports_what_the_controller_found(registry: FakeRegistry, tmp_path: Path) -> None:
    """Other bytes, or models that came to the address before anybody looked; only of models that are served."""
    record(registry, tmp_path)
    assert "" == faults(registry)
    record(registry, tmp_path, found="c" * 64)
    assert "model film (m) was registered with sha256 a7937b64b8ca…, the file store now gives cccc" in faults(registry)
    record(registry, tmp_path, newer=tuple(f"m{number}" for number in range(6)))
    assert "m0, m1, m2, m3, m4 and more are all at file://" in faults(registry)
    registry.endpoints.clear()
    assert "" == faults(registry)


def test_an_unreadable_record_is_ignored(registry: FakeRegistry) -> None:
    """Other records still count."""
    registry.ledger.write([Record("content_hash", "x", {"sha256": 1}), Record("rollout", "e", {"stable": 3})])
    assert "" == faults(registry)


async def test_a_gateway_refuses_the_other_model_and_keeps_serving_its_own(make_stack: Callable[..., Any]) -> None:
    """A restarted gateway with its files serves on; one without them refuses the other model, and writes nothing."""
    stack = make_stack()
    stack.deploy("e")
    async with stack.gateway.running(), stack.client:
        await stack.served("e")
    record(stack.registry, stack.folder, "m1")
    with (stack.folder / "m1.zip").open("ab") as archive:
        archive.write(b"another upload")
    writes = stack.registry.ledger.writes
    for is_fresh in (False, True):
        if is_fresh:
            shutil.rmtree(stack.folder / "state")
        stack.backend.is_up = True  # a gateway that ends closes it
        stack.gateway = stack.new_gateway()
        stack.client = stack.new_client(stack.gateway)
        async with stack.gateway.running(), stack.client:
            if not is_fresh:
                await stack.served("e")
                continue
            await stack.until(lambda: stack.state("e")[0] == "failed")
            status = (await stack.client.get("/v1/status")).json()
            assert "another upload" in status["pending"][0]["reason"]
            assert 503 == (await stack.client.post("/serve/e", json={"text": "good film"})).status_code
    assert writes == stack.registry.ledger.writes

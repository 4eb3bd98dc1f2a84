"""A model's bytes must be the recorded ones. Others under the same id are refused by name."""

from __future__ import annotations

import shutil
import zipfile
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from gateway.errors import ArtifactCorrupt, RegistryUnavailable
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


def cache(registry: FakeRegistry, root: Path) -> ArtifactCache:
    """A cache that has just seen the serving Task."""
    found = ArtifactCache(root, registry)
    found.learn(registry.task())
    return found


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


def test_cached_files_are_compared_too(registry: FakeRegistry, tmp_path: Path) -> None:
    """A copy from before the content was recorded is downloaded again."""
    (tmp_path / "store.bin").write_bytes(b"second")
    late = cache(registry, tmp_path / "two")
    late.model(registry.model("m"))
    (tmp_path / "store.bin").write_bytes(b"first")
    record(registry, tmp_path)
    late.learn(registry.task())
    assert b"first" == (late.model(registry.model("m")) / "store.bin").read_bytes()


def test_a_model_with_a_new_address_is_a_new_model(registry: FakeRegistry, tmp_path: Path) -> None:
    """A person changed the model itself, and every replica follows."""
    record(registry, tmp_path)
    (tmp_path / "other.bin").write_bytes(b"second")
    registry.add_model("m", tmp_path / "other.bin", name="film")
    assert b"second" == (cache(registry, tmp_path / "two").model(registry.model("m")) / "other.bin").read_bytes()


def test_a_copy_on_disk_serves_while_the_registry_is_away(registry: FakeRegistry, tmp_path: Path) -> None:
    """New models wait until they can be downloaded."""
    known = registry.model("m")
    cache(registry, tmp_path / "one").model(known)
    registry.is_up = registry.ledger.is_up = False
    assert b"first" == (ArtifactCache(tmp_path / "one", registry).model(known) / "store.bin").read_bytes()
    with pytest.raises(RegistryUnavailable):
        ArtifactCache(tmp_path / "two", registry).model(known)


def test_a_broken_upload_has_no_hash(registry: FakeRegistry, tmp_path: Path) -> None:
    """So it is never reported; the upload that repairs it is served."""
    registry.add_model("m", tmp_path / "store.bin", name="film", is_package=True)
    broken = cache(registry, tmp_path / "one")
    with pytest.raises(ArtifactCorrupt):
        broken.model(registry.model("m"))
    assert {} == broken.hashes(registry.model("m"))
    with zipfile.ZipFile(tmp_path / "store.bin", "w") as packed:
        packed.writestr("says.txt", "right")
    assert "right" == (broken.model(registry.model("m")) / "says.txt").read_text()
    assert {"sha256", "parts"} == broken.hashes(registry.model("m")).keys()


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


def test_an_unreadable_record_is_ignored(registry: FakeRegistry, tmp_path: Path) -> None:
    """Other records still count."""
    registry.ledger.write([Record("content_hash", "x", {"sha256": 1}), Record("rollout", "e", {"stable": 3})])
    assert "" == faults(registry)
    assert b"first" == (cache(registry, tmp_path / "one").model(registry.model("m")) / "store.bin").read_bytes()


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

"""A model's bytes must stay the same as when they were first seen. Others under the same id are refused by name."""

from __future__ import annotations

import shutil
import threading
import time
import zipfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from gateway.control.compile import shared_address
from gateway.errors import ArtifactCorrupt, ContentChanged, RegistryUnavailable
from gateway.registry import contents
from gateway.registry.cache import ArtifactCache
from gateway.registry.ledger import Record, Records
from gateway.spec import ModelRecord, SeenContent, decode
from gateway.testing import FakeLedger, FakeRegistry


@pytest.fixture
def registry(tmp_path: Path) -> FakeRegistry:
    """One endpoint and its model, one file."""
    registry = FakeRegistry()
    (tmp_path / "store.bin").write_bytes(b"first")
    registry.add_model("m", tmp_path / "store.bin", name="film")
    registry.add_endpoint("e", "m")
    return registry


LATER = "2100-01-01T00:00:00+00:00"
"""When a model was registered that came after another one was seen."""


def record(registry: FakeRegistry, model_id: str = "m") -> ModelRecord:
    """Return the model's record."""
    return registry.model(model_id)


def overwrite(tmp_path: Path, content: bytes) -> None:
    """Replace the file, as a second upload from a folder of the same name does on a real file server."""
    (tmp_path / "store.bin").write_bytes(content)


def faults(registry: FakeRegistry) -> str:
    """Return each gateway's faults of the configuration."""
    return " ".join(f"{f.subject} {f.message}" for f in decode(registry.task()).faults)


def test_a_new_replica_refuses_other_bytes_than_the_first_ones(registry: FakeRegistry, tmp_path: Path) -> None:
    """With the reason and a hint. A replica that has the first bytes keeps serving them."""
    first = ArtifactCache(tmp_path / "one", registry)
    first.model(record(registry))
    overwrite(tmp_path, b"second")
    with pytest.raises(ContentChanged, match="film") as refusal:
        ArtifactCache(tmp_path / "two", registry).model(record(registry))
    assert all(part in refusal.value.message for part in ("a7937b64b8ca", "16367aacb67a", "another upload"))
    assert "another name" in refusal.value.hint
    assert b"first" == (first.model(record(registry)) / "store.bin").read_bytes()


def test_a_refused_download_is_not_kept(registry: FakeRegistry, tmp_path: Path) -> None:
    """If the file store has the first bytes again, they are accepted and the fault ends."""
    ArtifactCache(tmp_path / "one", registry).model(record(registry))
    overwrite(tmp_path, b"second")
    late = ArtifactCache(tmp_path / "two", registry)
    with pytest.raises(ContentChanged):
        late.model(record(registry))
    assert "another upload" in faults(registry)
    overwrite(tmp_path, b"first")
    assert b"first" == (late.model(record(registry)) / "store.bin").read_bytes()
    assert "" == faults(registry)


def test_every_gateway_reports_an_overwritten_model(registry: FakeRegistry, tmp_path: Path) -> None:
    """Also those that serve the first bytes, because the next replica could not start with it."""
    ArtifactCache(tmp_path / "one", registry).model(record(registry))
    assert "" == faults(registry)
    overwrite(tmp_path, b"second")
    with pytest.raises(ContentChanged):
        ArtifactCache(tmp_path / "two", registry).model(record(registry))
    assert "model film (m) was registered with sha256 a7937b64b8ca…" in faults(registry)
    writes = registry.ledger.writes
    with pytest.raises(ContentChanged):
        ArtifactCache(tmp_path / "three", registry).model(record(registry))
    assert writes == registry.ledger.writes  # it is known: a retry writes nothing


def test_cached_files_are_compared_too(registry: FakeRegistry, tmp_path: Path) -> None:
    """A copy from before records existed, or of a lost race, is downloaded again and compared."""
    overwrite(tmp_path, b"second")
    late = ArtifactCache(tmp_path / "two", registry)
    late.model(record(registry))
    registry.ledger = FakeLedger()  # nobody had recorded it
    overwrite(tmp_path, b"first")
    ArtifactCache(tmp_path / "one", registry).model(record(registry))
    late = ArtifactCache(tmp_path / "two", registry)
    late.learn(registry.task())
    assert b"first" == (late.model(record(registry)) / "store.bin").read_bytes()


def test_a_model_with_a_new_address_is_a_new_model(registry: FakeRegistry, tmp_path: Path) -> None:
    """A person changed the model itself, and every replica follows."""
    ArtifactCache(tmp_path / "one", registry).model(record(registry))
    (tmp_path / "other.bin").write_bytes(b"second")
    registry.add_model("m", tmp_path / "other.bin", name="film")
    assert b"second" == (ArtifactCache(tmp_path / "two", registry).model(record(registry)) / "other.bin").read_bytes()


def test_without_write_access_models_are_served_with_a_warning(registry: FakeRegistry, tmp_path: Path) -> None:
    """Read-only credentials only prevent the detection."""
    registry.ledger.is_read_only = True
    cache = ArtifactCache(tmp_path / "one", registry)
    assert b"first" == (cache.model(record(registry)) / "store.bin").read_bytes()
    assert "read-only" in cache.problem


def test_a_copy_on_disk_serves_while_the_registry_is_away(registry: FakeRegistry, tmp_path: Path) -> None:
    """It was compared when it was downloaded. New models wait until they can be compared."""
    cache = ArtifactCache(tmp_path / "one", registry)
    known = record(registry)
    cache.model(known)
    registry.is_up = registry.ledger.is_up = False
    assert b"first" == (ArtifactCache(tmp_path / "one", registry).model(known) / "store.bin").read_bytes()
    registry.is_up = True
    with pytest.raises(RegistryUnavailable):
        ArtifactCache(tmp_path / "two", registry).model(known)


async def test_a_gateway_reports_the_model_and_keeps_serving(make_stack: Callable[..., Any]) -> None:
    """A restarted gateway without its files refuses the other model; one with its files serves on."""
    stack = make_stack()
    stack.deploy("e")
    async with stack.gateway.running(), stack.client:
        await stack.served("e")
    with (stack.folder / "m1.zip").open("ab") as archive:
        archive.write(b"another upload")
    stack.backend.is_up = True  # a gateway that ends closes it
    again = stack.new_gateway()
    stack.gateway, stack.client = again, stack.new_client(again)
    async with again.running(), stack.client:
        await stack.served("e")
    shutil.rmtree(stack.folder / "state")
    stack.backend.is_up = True
    fresh = stack.new_gateway()
    stack.gateway, stack.client = fresh, stack.new_client(fresh)
    async with fresh.running(), stack.client:
        await stack.until(lambda: stack.state("e")[0] == "failed")
        status = (await stack.client.get("/v1/status")).json()
        assert "another upload" in status["pending"][0]["reason"]
        assert 503 == (await stack.client.post("/serve/e", json={"text": "good film"})).status_code


async def test_another_upload_to_the_address_of_a_model_is_a_fault_at_once(make_stack: Callable[..., Any]) -> None:
    """Also if the other one is not served, because it was just uploaded."""
    stack = make_stack()
    stack.deploy("e")
    async with stack.gateway.running(), stack.client:
        await stack.served("e")
        assert [] == (await stack.client.get("/v1/status")).json()["faults"]
        with zipfile.ZipFile(stack.folder / "m1.zip", "a") as archive:
            archive.writestr("another.txt", "upload")
        stack.registry.add_model("m2", stack.folder / "m1.zip", is_package=True, name="newer", created=LATER)
        await stack.until(lambda: stack.gateway.table.current.faults)
        fault = (await stack.client.get("/v1/status")).json()["faults"][0]
        assert ("model m1", True) == (fault["subject"], "newer (m2)" in fault["message"])
        assert 200 == (await stack.client.post("/serve/e", json={"text": "good film"})).status_code
        del stack.registry.models["m2"]
        await stack.until(lambda: not stack.gateway.table.current.faults)


async def test_the_same_bytes_published_twice_are_no_fault(make_stack: Callable[..., Any]) -> None:
    """The gateway looks at what nobody has seen, and records it."""
    stack = make_stack()
    stack.deploy("e")
    async with stack.gateway.running(), stack.client:
        await stack.served("e")
        first = stack.registry.models["m1"]
        stack.registry.models["m1"] = replace(first, created="2000-01-01T00:00:00+00:00")
        stack.registry.add_model("m2", stack.folder / "m1.zip", is_package=True, name="again", created=LATER)
        found: list[object] = []

        def is_seen() -> bool:
            found.extend(stack.gateway.table.current.faults)
            return {"m1", "m2"} == {value["model"] for value in stack.registry.ledger.read()["content_hash"].values()}

        await stack.until(is_seen)
        stack.deploy("other")
        await stack.served("e", "other")
        assert [] == found
        assert [] == (await stack.client.get("/v1/status")).json()["faults"]


@pytest.mark.parametrize(
    ("models", "hashes", "is_fault"),
    [
        ({"a": 1, "b": 5}, {"a": (2, "x"), "b": (6, "x")}, False),
        ({"a": 1, "b": 5}, {"a": (2, "x"), "b": (6, "y")}, True),
        ({"a": 1, "b": 5}, {"a": (6, "x"), "b": (6, "x")}, True),  # what `a` was is lost
        ({"a": 1, "b": 5, "c": 9}, {"a": (2, "x"), "b": (6, "x"), "c": (10, "x")}, False),
        ({"a": 1, "b": 5, "c": 9}, {"a": (2, "x"), "b": (10, "x"), "c": (10, "x")}, True),
        ({"a": 1, "b": None}, {"a": (2, "x"), "b": (6, "x")}, True),
        ({"a": 1, "b": 5}, {}, True),
    ],
)  # fmt: skip
def test_models_of_one_address_are_told_apart_by_what_was_seen_when(
    tmp_path: Path, models: dict[str, int | None], hashes: dict[str, tuple[int, str]], is_fault: bool
) -> None:
    """Only bytes that were seen before the next upload are surely those of their model."""
    registry, seen = FakeRegistry(), {}
    for name, made in models.items():
        created = {} if made is None else {"created": datetime.fromtimestamp(made, UTC).isoformat()}
        registry.add_model(name, tmp_path / "bundle.zip", **created)
        if name in hashes:
            at, sha256 = hashes[name]
            seen[contents.identity_of(record(registry, name))] = SeenContent(name, name, sha256, at, at)
    known = [record(registry, name) for name in models]
    assert is_fault == bool(contents.shared(registry, known, seen))


def test_an_address_that_says_what_is_there_is_no_fault(tmp_path: Path) -> None:
    """Nothing else can be put there."""
    registry = FakeRegistry()
    for model_id in ("a", "b"):
        registry.add_model(model_id, tmp_path / "m-0123456789abcdef.zip")
    assert [] == list(contents.shared(registry, [record(registry, "a")], {}))


def test_files_from_before_records_existed_are_recorded(registry: FakeRegistry, tmp_path: Path) -> None:
    """At once after an update of the gateway, while the right bytes are still known."""
    cache = ArtifactCache(tmp_path / "one", registry)
    cache.model(record(registry))
    registry.ledger = FakeLedger()
    updated = ArtifactCache(tmp_path / "one", registry)
    updated.keep([record(registry)])
    assert {} == registry.ledger.read()  # the registry was not read yet: it may be away
    updated.learn(registry.task())
    updated.keep([record(registry)])
    overwrite(tmp_path, b"second")
    with pytest.raises(ContentChanged):
        ArtifactCache(tmp_path / "two", registry).model(record(registry))


def test_of_two_first_hashes_the_earlier_counts(registry: FakeRegistry, tmp_path: Path) -> None:
    """Both were recorded before either could be read. All gateways choose the same."""
    identity = contents.identity_of(record(registry))
    for at, sha256 in ((2.0, "b" * 64), (1.0, "c" * 64)):
        value = {"identity": identity, "sha256": sha256, "at": at, "last": at, "model": "m", "name": "film"}
        registry.ledger.write([Record("content_hash", f"{identity}/{sha256}", value)])
    with pytest.raises(ContentChanged, match="cccccccccccc"):
        ArtifactCache(tmp_path / "one", registry).model(record(registry))


def test_a_late_clock_does_not_replace_a_known_hash(registry: FakeRegistry, tmp_path: Path) -> None:
    """Its bytes came later, whatever its clock says, and every gateway reports the overwritten model."""
    ArtifactCache(tmp_path / "one", registry, clock=lambda: 5_000.0).model(record(registry))
    overwrite(tmp_path, b"second")
    with pytest.raises(ContentChanged, match="registered with sha256 a7937b64b8ca"):
        ArtifactCache(tmp_path / "two", registry, clock=lambda: 1_000.0).model(record(registry))
    assert "another upload" in faults(registry)


def test_a_broken_upload_is_not_recorded_as_the_first(registry: FakeRegistry, tmp_path: Path) -> None:
    """The upload that repairs it is served."""
    registry.add_model("m", tmp_path / "store.bin", name="film", is_package=True)
    with pytest.raises(ArtifactCorrupt):
        ArtifactCache(tmp_path / "one", registry).model(record(registry))
    with zipfile.ZipFile(tmp_path / "store.bin", "w") as packed:
        packed.writestr("says.txt", "right")
    assert "right" == (ArtifactCache(tmp_path / "one", registry).model(record(registry)) / "says.txt").read_text()


def test_an_unreadable_record_is_ignored(registry: FakeRegistry, tmp_path: Path) -> None:
    """Other records still count."""
    registry.ledger.write([Record("content_hash", "x", {"sha256": 1}), Record("decision", "e", {"urls": 3})])
    assert "" == faults(registry)
    assert b"first" == (ArtifactCache(tmp_path / "one", registry).model(record(registry)) / "store.bin").read_bytes()


def test_models_of_one_change_read_the_records_together(registry: FakeRegistry, tmp_path: Path) -> None:
    """A change of a thousand endpoints does not read all records twice for each. Each finds its own."""
    ledger = registry.ledger
    others, held = [threading.Event() for _ in range(7)], []
    plain, reads = ledger.read, []

    def read() -> Any:
        reads.append(1)
        if not held:
            held.append(1)
            for other in others:
                other.wait(60)
            time.sleep(0.2)  # until they stand in line, or most of them
        return plain()

    ledger.read = read  # type: ignore[method-assign]
    cache = ArtifactCache(tmp_path / "cache", registry)
    for number in range(8):
        (tmp_path / f"{number}.bin").write_bytes(b"%d" % number)
        registry.add_model(f"m{number}", tmp_path / f"{number}.bin", name=f"model {number}")

    def fetch(number: int) -> bytes:
        if number:
            others[number - 1].set()
        return (cache.model(registry.model(f"m{number}")) / f"{number}.bin").read_bytes()

    with ThreadPoolExecutor(8) as pool:
        assert [b"%d" % number for number in range(8)] == list(pool.map(fetch, range(8)))
    assert 2 <= len(reads) < 2 * 8
    assert 8 == len(plain()["content_hash"])


@pytest.mark.parametrize("is_up", [True, False])
def test_models_of_one_change_are_recorded_together(registry: FakeRegistry, tmp_path: Path, *, is_up: bool) -> None:
    """Models that come during a write share the next one. If it fails, all of them get the error."""
    ledger = registry.ledger
    plain, writes = ledger.write, []
    cache = ArtifactCache(tmp_path / "cache", registry)

    def write(records: Any) -> None:
        writes.append(len(records))
        deadline = time.monotonic() + 20
        while len(writes) == 1 and len(cache._contents._batch.records) < 7 and time.monotonic() < deadline:
            time.sleep(0.01)
        if len(writes) == 2 and not is_up:
            raise RegistryUnavailable("away")
        plain(records)

    ledger.write = write  # type: ignore[method-assign]
    for number in range(8):
        (tmp_path / f"{number}.bin").write_bytes(b"%d" % number)
        registry.add_model(f"m{number}", tmp_path / f"{number}.bin", name=f"model {number}")

    def fetch(number: int) -> bool:
        try:
            cache.model(registry.model(f"m{number}"))
        except RegistryUnavailable:
            return False
        return True

    with ThreadPoolExecutor(8) as pool:
        fetched = list(pool.map(fetch, range(8)))
    assert [1, 7] == writes
    assert (8 if is_up else 1) == sum(fetched) == len(ledger.read()["content_hash"])


def test_records_of_hundreds_of_models_are_read_once(tmp_path: Path) -> None:
    """A replica that starts with 300 new models must not read all records 300 times."""

    class Counting(FakeLedger):
        reads = 0

        def read(self) -> Records:
            self.reads += 1
            return super().read()

    registry = FakeRegistry()
    registry.ledger = ledger = Counting()
    for number in range(20):
        (tmp_path / f"{number}.bin").write_bytes(b"%d" % number)
        registry.add_model(f"m{number}", tmp_path / f"{number}.bin")
    models = [registry.model(f"m{number}") for number in range(20)]
    for name in ("one", "two"):
        cache, ledger.reads = ArtifactCache(tmp_path / name, registry), 0
        for model in models:
            cache.model(model)
    assert 1 == ledger.reads


def test_a_fault_names_only_a_few_of_many_models_at_one_address() -> None:
    """Each of them has this fault, and each would name all others."""
    told = shared_address("file:///m.zip", [f"m{number}" for number in range(300)])
    assert "m0, m1, m2, m3, m4 and 295 more are all at file:///m.zip" in told
    assert "(a, b are all at u)" in shared_address("u", ["a", "b"])

"""One suite over the fake registry and the real clearml SDK against a real control plane process."""

from __future__ import annotations

import hashlib
import io
import os
import zipfile
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import pytest
from clearml.config import ConfigWrapper

from gateway.errors import RegistryRefused, RegistryUnavailable
from gateway.registry.cache import ArtifactCache
from gateway.registry.clearml import ClearMLRegistry
from gateway.registry.clearml.upload import attach
from gateway.registry.ledger import Record
from gateway.registry.port import ModelQuery, RegistryWriter, Upload
from gateway.spec import decode, records_of
from tests.control_planes import control_plane
from tests.fakes import FakeRegistry
from tests.stock import Client
from tests.waiting import LIMIT_S

pytestmark = pytest.mark.integration

CODE = "class Preprocess:\n    def process(self, body, state, s=None):\n        return body\n"


@dataclass
class World:
    """A registry that holds endpoint `e/1` (a one-file model, with code) and a folder model."""

    registry: RegistryWriter
    model_id: str
    folder_id: str
    weights: bytes
    change: Callable[[], None]
    register: Callable[[Upload], str]
    attach: Callable[[str, Path], None]
    contain: Callable[[], str]
    """Start a container of clearml-serving; returns its id."""
    stop: Callable[[], None]


def register(task: str, upload: Upload) -> str:
    """Register a model in a process of its own."""
    return ClearMLRegistry(task).register(upload)


def _files(tmp_path: Path) -> tuple[Path, Path, Path]:
    weights, code, folder = tmp_path / "weights #1.onnx", tmp_path / "hook.py", tmp_path / "bundle"
    weights.write_bytes(os.urandom(2000))
    code.write_text(CODE)
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    return weights, code, folder


@pytest.fixture(params=["fake", "clearml"], scope="module")
def world(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    """The same content in a fake and in a real registry, the latter written by the stock CLI.

    Shared by the tests of this file; the one that ends it comes last.
    """
    tmp_path = tmp_path_factory.mktemp("world")
    weights, code, folder = _files(tmp_path)
    if request.param == "fake":
        import shutil

        fake = FakeRegistry()
        fake.add_model("m", weights, name="one", project="contract")
        archive = Path(shutil.make_archive(str(tmp_path / "bundle"), "zip", folder))
        fake.add_model("f", archive, is_package=True, name="two", project="contract", is_published=False)
        fake.add_artifact("py_code_e_1", code, sha256=hashlib.sha256(CODE.encode()).hexdigest())
        fake.add_endpoint("e", "m", version="1", preprocess_artifact="py_code_e_1")

        def contain_fake() -> str:
            fake.containers.append("container")
            return "container"

        def stop_fake() -> None:
            fake.is_up = fake.ledger.is_up = False

        yield World(
            fake, "m", "f", weights.read_bytes(), lambda: fake.add_endpoint("other", "m"), fake.register,
            fake.attach, contain_fake, stop_fake,
        )  # fmt: skip
        return
    with control_plane(tmp_path / "state") as server:
        client = Client(server, tmp_path)
        task = client.create("contract")
        model = client.upload("one", weights, project="contract")
        package = client.upload("two", folder, project="contract", publish=False)
        client.add("e", "--version", "1", "--model-id", model, "--preprocess", str(code))

        def change() -> None:
            client.add("other", "--model-id", model)

        def contain() -> str:
            """As its `setup_task` names its own Task, which it keeps alive."""
            made = server.call("tasks.create", name="contract - serve instance", type="inference")["id"]
            server.call("tasks.started", task=made)
            return str(made)

        with client.here():
            # The SDK keeps the first server it has found for as long as its process lives: one process each.
            with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
                yield World(
                    ClearMLRegistry(task), model, package, weights.read_bytes(), change,
                    lambda upload: pool.submit(register, task, upload).result(LIMIT_S),
                    lambda key, path: pool.submit(attach, task, key, path).result(LIMIT_S), contain,
                    server.process.kill,
                )  # fmt: skip


def test_task_decodes_to_the_endpoint_that_was_added(world: World) -> None:
    """What the stock CLI (or the fake) configured is what the gateway sees."""
    spec = decode(world.registry.task())
    endpoint = spec.endpoints["e/1"]
    assert ("e", "1", "triton", world.model_id) == (
        endpoint.endpoint, endpoint.version, endpoint.engine, endpoint.model_id,
    )  # fmt: skip
    assert endpoint.preprocess is not None
    assert hashlib.sha256(CODE.encode()).hexdigest() == endpoint.preprocess.sha256
    assert () == spec.faults


def test_marker_moves_with_the_task_only(world: World) -> None:
    """Equal while nothing happens, different after a change."""
    before = world.registry.marker()
    assert before == world.registry.marker()
    world.change()
    assert before != world.registry.marker()
    assert {"e/1", "other"} == set(decode(world.registry.task()).endpoints)


def test_records_come_with_the_task_and_move_the_marker(world: World) -> None:
    """Whoever follows the Task follows our records of it."""
    before = world.registry.marker()
    world.registry.ledger.write([Record("load_request", "e", {"n": 1})])
    assert before != world.registry.marker()
    assert {"e": {"n": 1}} == dict(records_of(world.registry.task(), "load_request"))


def test_models_are_found_by_their_address(world: World) -> None:
    """Whoever has it, served or not; an address of nobody is no error."""
    uri = world.registry.model(world.model_id).uri
    assert [world.model_id] == [model.id for model in world.registry.models_at([uri, f"{uri}.not"])]
    assert [] == list(world.registry.models_at([]))


def test_files_arrive_as_they_were_uploaded(world: World, tmp_path: Path) -> None:
    """A file (with a `#` in its name), a folder, and code whose hash is checked."""
    cache = ArtifactCache(tmp_path / "cache", world.registry)
    one = cache.model(world.registry.model(world.model_id))
    assert [world.weights] == [p.read_bytes() for p in one.iterdir()]
    two = cache.model(world.registry.model(world.folder_id))
    assert {"config.json": "{}"} == {p.name: p.read_text() for p in two.iterdir()}
    code = decode(world.registry.task()).endpoints["e/1"].preprocess
    assert code is not None
    assert CODE == cache.artifact(code).read_text()


def test_unknown_model_is_refused(world: World) -> None:
    """An id that does not exist is an answer, not an outage."""
    with pytest.raises(RegistryRefused):
        world.registry.model("0" * 32)


def test_records_of_many_models_come_in_one_answer(world: World) -> None:
    """What they say is what the single answers say; a model that does not exist is left out."""
    found = world.registry.records([world.model_id, "0" * 32])
    assert [world.model_id] == list(found)
    assert world.registry.model(world.model_id) == found[world.model_id]
    assert {} == world.registry.records([])


def test_missing_file_is_refused(world: World, tmp_path: Path) -> None:
    """A file that is gone is an answer too."""
    uri = world.registry.model(world.model_id).uri.rpartition("/")[0] + "/nosuchfile"
    with pytest.raises(RegistryRefused):
        world.registry.download(uri, tmp_path)


def test_files_can_be_read_in_parts(world: World) -> None:
    """Every part is what lies there in the whole, whatever is in the name."""
    parts = world.registry.parts(world.registry.model(world.model_id).uri)
    assert parts is not None
    assert parts.size == len(world.weights)
    for start, count in ((0, 1), (1990, 10), (500, 1000)):
        assert world.weights[start : start + count] == b"".join(parts.read(start, count))


def test_wrong_credentials_and_unknown_tasks_are_refused_with_what_to_check(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not an outage: waiting would not help."""
    with control_plane(tmp_path / "state") as server:
        client = Client(server, tmp_path)
        with client.here():
            monkeypatch.setenv("CLEARML_API_ACCESS_KEY", "wrong")
            with pytest.raises(RegistryRefused) as refusal:
                ClearMLRegistry("0" * 32).marker()
            monkeypatch.undo()
            with pytest.raises(RegistryRefused, match="does not exist") as unknown:
                ClearMLRegistry("0" * 32).marker()
            with pytest.raises(RegistryRefused, match="does not exist"):
                ClearMLRegistry("0" * 32).task()
    assert "CLEARML_API_ACCESS_KEY" in refusal.value.hint
    assert "CLEARML_SERVING_TASK_ID" in unknown.value.hint


def test_the_newest_models_that_match_are_found(world: World) -> None:
    """By names, by whether they are published, by id; with a limit the newest; what nobody has is nothing."""

    def find(**query: Any) -> list[str]:
        return list(world.registry.find_models(ModelQuery(**query)))

    assert [world.folder_id, world.model_id] == find(project="contract")
    assert [world.model_id] == find(project="contract", only_published=True)
    assert [world.model_id] == find(project="contract", name="one") == find(ids=(world.model_id,))
    assert [world.folder_id] == find(project="contract", most=1)
    assert [] == find(project="contrac") == find(name="on") == find(project="contract", tags=("nobody's",))


def test_one_section_is_written_and_the_others_stay(world: World) -> None:
    """Together with records of ours, which whoever sees the section sees."""
    before = world.registry.task().sections.get("endpoints", "")
    world.registry.write({"ours": "a = 1"}, [Record("rollout", "r", {"n": 2})])
    task = world.registry.task()
    assert "a = 1" == task.sections.get("ours", "")
    assert before == task.sections.get("endpoints", "")
    assert {"n": 2} == dict(records_of(task, "rollout")["r"])
    assert decode(task) == world.registry.spec()
    assert task.id == world.registry.followed()


def test_containers_of_clearml_serving_are_seen(world: World) -> None:
    """By the Task of its own that each keeps alive."""
    assert [] == list(world.registry.stock_containers())
    assert [world.contain()] == list(world.registry.stock_containers())


def test_what_is_reported_is_taken(world: World) -> None:
    """Scalars of the serving Task, and its endpoints; nothing to report is no call."""
    event = {"type": "training_stats_scalar", "metric": "m", "variant": "v", "value": 1.0, "iter": 1}
    world.registry.report([{**event, "task": world.registry.followed(), "timestamp": 1, "worker": "w"}])
    world.registry.report([])
    world.registry.report_endpoint(
        {"container_id": "c", "endpoint_name": "e", "endpoint_url": "http://gateway/serve/e", "model_name": "m"}
    )


def test_an_upload_is_a_model_like_others_and_replaces_none(world: World, tmp_path: Path) -> None:
    """The same files are one model, whenever they were written and in whatever order; other files are another one."""
    (tmp_path / "scratch").mkdir()

    def registered(where: str, files: dict[str, bytes], at: int) -> str:
        folder = tmp_path / where / "one name"
        for name, content in files.items():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_bytes(content)
            (folder / name).chmod(0o600 + at)
            os.utime(folder / name, (at, at))
        upload = Upload(folder, "upl #1/oads", "näme", "onnx", ("t",), "said", scratch=tmp_path / "scratch")
        return world.register(upload)

    files = {"model.onnx": b"weights", "1_Pooling/config.json": b"{}", "tokenizer.json": b"{}"}
    first = registered("a", files, 32)
    assert first == registered("b", dict(reversed(files.items())), 36)
    other = registered("a", {"model.onnx": b"other weights"}, 32)
    assert first != other
    cache = ArtifactCache(tmp_path / "cache", world.registry)
    for model_id, weights in ((first, b"weights"), (other, b"other weights")):
        model = world.registry.model(model_id)
        assert ("näme", ("t",), "onnx") == (model.name, model.tags, model.framework)
        files_of = cache.model(model)
        assert weights == (files_of / "model.onnx").read_bytes()
        assert {"1_Pooling", "model.onnx", "tokenizer.json"} == {path.name for path in files_of.iterdir()}
    assert [other, first] == list(world.registry.find_models(ModelQuery(name="näme", only_published=True)))[:2]


def test_what_is_attached_is_the_tasks_code_and_replaces_what_was_there(world: World, tmp_path: Path) -> None:
    """A file as it is, a folder as an archive; what else is attached stays."""
    file, folder = tmp_path / "words.py", tmp_path / "parts"
    folder.mkdir()
    for path, text in ((file, "A = 1\n"), (folder / "a.py", "B = 2\n"), (folder / "b.py", "C = 3\n")):
        path.write_text(text)

    def attached(key: str) -> tuple[bool, bytes]:
        found = world.registry.task().artifacts
        assert "py_code_e_1" in found
        (tmp_path / "got").mkdir(exist_ok=True)
        path = world.registry.download(found[key].uri, tmp_path / "got")
        assert hashlib.sha256(path.read_bytes()).hexdigest() == found[key].sha256
        return found[key].is_archive, path.read_bytes()

    world.attach("py_code_new", file)
    assert b"A = 1\n" == attached("py_code_new")[1]
    world.attach("py_code_new", folder)
    is_archive, raw = attached("py_code_new")
    assert is_archive
    with zipfile.ZipFile(io.BytesIO(raw)) as packed:
        assert {"a.py": b"B = 2\n", "b.py": b"C = 3\n"} == {name: packed.read(name) for name in packed.namelist()}


def test_outage_is_unavailable_in_bounded_time_and_over_when_it_is_over(world: World) -> None:
    """The SDK's own way is 240 silent retries; here a dead registry is an error within seconds."""
    world.registry.marker()
    world.stop()
    for call in (
        world.registry.marker, world.registry.task, world.registry.stock_containers,
        lambda: world.registry.model(world.model_id), lambda: world.registry.find_models(ModelQuery()),
        lambda: world.registry.write({"ours": "a = 2"}), lambda: world.registry.report([{}]),
        world.registry.ledger.marker, world.registry.ledger.read,
        lambda: world.registry.ledger.write([Record("load_request", "e", {"n": 1})]),
    ):  # fmt: skip
        with pytest.raises(RegistryUnavailable):
            call()


def test_a_registry_that_is_away_costs_next_to_nothing_to_ask(monkeypatch: pytest.MonkeyPatch) -> None:
    """A gateway that booted without it asks again and again, beside requests: files are read the first time only."""
    for name in ("API", "WEB", "FILES"):
        monkeypatch.setenv(f"CLEARML_{name}_HOST", "http://127.0.0.1:9")
    monkeypatch.setenv("CLEARML_API_ACCESS_KEY", "key")
    monkeypatch.setenv("CLEARML_API_SECRET_KEY", "secret")
    registry = ClearMLRegistry("task")
    with pytest.raises(RegistryUnavailable):
        registry.marker()
    with monkeypatch.context() as patched:
        patched.setattr(ConfigWrapper, "set_overrides", lambda *_: pytest.fail("the files were read again"))
        with pytest.raises(RegistryUnavailable):
            registry.marker()

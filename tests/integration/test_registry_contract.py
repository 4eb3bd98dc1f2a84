"""One suite over the fake registry and the real clearml SDK against a real control plane process, with its records.

The control plane is strict: as on a ClearML server, whole fields are replaced and nothing is merged.
"""

from __future__ import annotations

import hashlib
import io
import os
import zipfile
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import pytest

from gateway.errors import RegistryRefused, RegistryUnavailable
from gateway.registry.cache import ArtifactCache
from gateway.registry.clearml import ClearMLRegistry
from gateway.registry.clearml.ledger import SYSTEM_TAG, ClearMLLedger
from gateway.registry.clearml.upload import attach
from gateway.registry.ledger import Ledger, Record
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
    open: Callable[[], Ledger]
    """Opens its records in a session of its own, as another process would."""
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
            fake, lambda: fake.ledger, "m", "f", weights.read_bytes(), lambda: fake.add_endpoint("other", "m"),
            fake.register, fake.attach, contain_fake, stop_fake,
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
                    ClearMLRegistry(task), lambda: ClearMLRegistry(task).ledger, model, package, weights.read_bytes(),
                    change, lambda upload: pool.submit(register, task, upload).result(LIMIT_S),
                    lambda key, path: pool.submit(attach, task, key, path).result(LIMIT_S), contain,
                    server.process.kill,
                )  # fmt: skip


def record(key: str, **value: Any) -> Record:
    """A record."""
    return Record("load_request", key, value)


def requests(ledger: Ledger) -> Mapping[str, Mapping[str, Any]]:
    """All of that kind."""
    return ledger.read().get("load_request", {})


def test_processes_that_write_first_at_once_all_find_everything(world: World) -> None:
    """Each may create the Task that holds the records: everybody reads the union, and no write replaces another key."""
    ledgers = [world.open() for _ in range(6)]
    assert [("", {})] * 6 == [(each.marker(), dict(each.read())) for each in ledgers], "reading creates nothing"
    with ThreadPoolExecutor(6) as pool:
        list(pool.map(lambda n: ledgers[n % 6].write([record(f"first/{n}", n=n)]), range(40)))
    expected = {f"first/{n}": {"n": n} for n in range(40)}
    assert [expected] * 6 == [dict(requests(each)) for each in ledgers]
    ledgers[0].write([record("first/0", n=100)])
    assert [{"n": 100}] * 6 == [requests(each)["first/0"] for each in ledgers]


def test_what_is_configured_is_seen_and_moves_the_marker(world: World) -> None:
    """What the stock CLI (or the fake) wrote, and records of ours; while nothing happens the marker stays."""
    spec = decode(world.registry.task())
    endpoint = spec.endpoints["e/1"]
    assert ("e", "1", "triton", world.model_id, ()) == (
        endpoint.endpoint, endpoint.version, endpoint.engine, endpoint.model_id, spec.faults,
    )  # fmt: skip
    assert endpoint.preprocess is not None
    assert hashlib.sha256(CODE.encode()).hexdigest() == endpoint.preprocess.sha256
    markers = [world.registry.marker(), world.registry.marker()]
    world.change()
    markers.append(world.registry.marker())
    assert {"e/1", "other"} == set(decode(world.registry.task()).endpoints)
    world.registry.ledger.write([Record("load_request", "e", {"n": 1})])
    markers.append(world.registry.marker())
    assert {"n": 1} == records_of(world.registry.task(), "load_request")["e"]
    assert markers[0] == markers[1]
    assert 3 == len(set(markers))


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


def test_what_is_not_there_is_an_answer(world: World, tmp_path: Path) -> None:
    """And no outage: an id, one of several, an address, a file that is gone."""
    with pytest.raises(RegistryRefused):
        world.registry.model("0" * 32)
    there = world.registry.model(world.model_id)
    assert {world.model_id: there} == world.registry.records([world.model_id, "0" * 32])
    assert [world.model_id] == [model.id for model in world.registry.models_at([there.uri, f"{there.uri}.not"])]
    assert ({}, []) == (world.registry.records([]), list(world.registry.models_at([])))
    with pytest.raises(RegistryRefused):
        world.registry.download(there.uri.rpartition("/")[0] + "/nosuchfile", tmp_path)


def test_files_can_be_read_in_parts(world: World) -> None:
    """Every part is what lies there in the whole, whatever is in the name."""
    parts = world.registry.parts(world.registry.model(world.model_id).uri)
    assert parts is not None
    assert parts.size == len(world.weights)
    for start, count in ((0, 1), (1990, 10), (500, 1000)):
        assert world.weights[start : start + count] == b"".join(parts.read(start, count))


def test_wrong_credentials_and_unknown_tasks_are_refused_with_what_to_check(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not an outage: waiting would not help."""
    for call in (ClearMLRegistry("0" * 32).marker, ClearMLRegistry("0" * 32).task):
        with pytest.raises(RegistryRefused, match="does not exist") as unknown:
            call()
    assert "CLEARML_SERVING_TASK_ID" in unknown.value.hint
    monkeypatch.setenv("CLEARML_API_ACCESS_KEY", "wrong")
    with pytest.raises(RegistryRefused) as refusal:
        ClearMLRegistry("0" * 32).marker()
    assert "CLEARML_API_ACCESS_KEY" in refusal.value.hint


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


def test_containers_are_seen_and_what_is_reported_is_taken(world: World) -> None:
    """Those of clearml-serving, by the Task of its own that each keeps alive. Nothing to report is no call."""
    assert [] == list(world.registry.stock_containers())
    assert [world.contain()] == list(world.registry.stock_containers())
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


def test_keys_and_values_come_back_as_they_were(world: World) -> None:
    """Whatever an endpoint may be called, and values of every JSON type."""
    keys = ["a/b", "a.b", "a_b", "$a", "a__b", " a ", "кир", "x" * 300, 'quo"te', "br{ace"]
    value = {"weights": {"a/1": 0.25}, "text": 'né "x"\n', "list": [1, None, True], "at": 1.5}
    world.open().write([Record("version_number", key, {**value, "key": key}) for key in keys])
    assert {key: {**value, "key": key} for key in keys} == dict(world.open().read()["version_number"])


def test_records_are_replaced_whole_and_removed_and_the_rest_stays(world: World) -> None:
    """No field of the value before stays; the marker moves; to remove what is not there is no error."""
    mine = world.open()
    mine.write([record(f"some/{n}", old=n) for n in range(3)])
    before = mine.marker()
    assert before == mine.marker() != ""
    world.open().write([record("some/1", new=2)])
    assert before != mine.marker()
    world.open().remove("load_request", ["some/0", "some/2", "some/3"])
    mine.remove("history", ["nothing"])
    mine.remove("load_request", [])
    for one in (mine, world.open()):
        assert {"some/1": {"new": 2}} == {key: value for key, value in requests(one).items() if "some" in key}


def test_stock_tools_leave_the_records_alone_and_who_may_only_read_is_told(client: Client) -> None:
    """``clearml-serving list`` shows services; the companion is none, and no command touches it or its status. Reading
    goes on where nothing can be written.
    """
    client.create("records")
    registry = ClearMLRegistry(client.task)
    registry.ledger.write([record("e", n=1)])
    before = registry.ledger.marker()
    companions = registry.call("tasks", "get_all", {"system_tags": [SYSTEM_TAG], "search_hidden": True})["tasks"]
    assert {"created"} == {task["status"] for task in companions}
    listed = client.stock("list")
    assert client.task in listed
    assert not [task["id"] for task in companions if task["id"] in listed]
    client.stock("config", "--base-serving-url", "http://x/serve")
    assert before == registry.ledger.marker()

    def read_only(service: str, action: str, body: Mapping[str, Any]) -> dict[str, Any]:
        if action in ("create", "edit_hyper_params"):
            raise RegistryRefused(f"{service}.{action}: no write permission")
        return registry.call(service, action, body)

    mine = ClearMLLedger(read_only, registry.followed)
    with pytest.raises(RegistryRefused, match="no write permission") as refusal:
        mine.write([record("e", n=2)])
    assert "credentials" in refusal.value.hint
    assert {"e": {"n": 1}} == requests(mine)


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

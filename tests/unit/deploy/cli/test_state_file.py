"""The state of a serving Task as a file: nothing gets lost, and only differences are written."""

from __future__ import annotations

import json
import zipfile
from pathlib import Path

import pytest

from deploy.cli import state_file
from deploy.controller.history import changes, recorder
from deploy.tools import sections
from deploy.tools.errors import DeployError
from gateway.errors import ArtifactCorrupt
from gateway.spec import ArtifactRef, decode
from tests.fakes import FakeRegistry

CODE = "class Preprocess:\n    def process(self, data, state, collect):\n        return data\n"


def make_store(folder: Path) -> FakeRegistry:
    """A Task with all parts of a document: plain and versioned endpoints, code, a canary, metrics, rules, a default."""
    store = FakeRegistry()
    for name in ("m1", "m2", "m3"):
        (folder / name).write_bytes(b"model")
        store.add_model(name, folder / name, name=f"model {name}", project="models")
    store.add_endpoint("faq", "m1", version="1", input_name=["x"], input_type=["float32"], input_size=[[-1, 4]])
    store.add_endpoint("faq", "m2", version="2", auxiliary_cfg={"gateway": {"max_length": 128}}, output_name=None)
    (folder / "preprocess.py").write_text(CODE)
    store.add_artifact("py_code_team_hook", folder / "preprocess.py", sha256="x")
    store.add_endpoint("team/hook", None, engine="custom", preprocess_artifact="py_code_team_hook")
    store.canary["live"] = {"endpoint": "live", "weights": [0.25, 0.75], "load_endpoints": ["faq/1", "faq/2"]}
    rule = {"base_serving_url": "auto", "engine_type": "triton", "monitor_project": "models", "monitor_tags": ["prod"],
            "only_published": True, "max_versions": 2}  # fmt: skip
    metrics = {"endpoint": "faq/*", "log_frequency": 0.5, "metrics": {"x": {"type": "scalar", "buckets": [0, 1]}}}
    made = {"auto/4": {"serving_url": "auto", "engine_type": "triton", "model_id": "m3", "version": "4"}}
    store.sections = {name: sections.render(section) for name, section in (
        ("model_monitoring", {"auto": rule}), ("metric_logging", {"faq/*": metrics}), ("model_monitoring_eps", made),
    )}  # fmt: skip
    store.write({}, [state_file.objective.stated("faq", {"latency": "300ms"}, now=1, by="me")])
    store.write({}, [state_file.default_versions.chosen("faq", "faq/2", now=1, by="me", why="test")])
    return store


def exported(store: FakeRegistry) -> state_file.Document:
    """Export this store, and parse the text again."""
    text = state_file.written(state_file.document_of(store, store.task()), "a title")
    return state_file.parsed(text, "state.yaml")


def plan(store: FakeRegistry, document: state_file.Document) -> state_file.Planned:
    """Return what is to be changed; what the document does not have is removed."""
    return state_file.compared(store, document, prune=True)


def applied(store: FakeRegistry, document: state_file.Document) -> None:
    """Apply all changes."""
    state_file.apply(store, plan(store, document), by="me")


def test_a_task_is_as_its_own_file_says(tmp_path: Path) -> None:
    """A Task has no differences to its own file: names, numbers, code and unset fields."""
    store = make_store(tmp_path)
    text = state_file.written(state_file.document_of(store, store.task()), "a title")
    assert text.startswith("# a title\nversion: 1\n")
    assert "      class Preprocess:\n" in text
    assert "null" not in text
    document = exported(store)
    assert {"preprocess.py": CODE} == document["code"]["py_code_team_hook"]
    assert "m1" == document["endpoints"]["faq/1"]["model_id"]
    assert {"name": "model m1", "project": "models"} == document["models"]["m1"]
    assert {"auto/4": "m3"} == document["versions"]
    assert {"faq": "faq/2"} == document["defaults"]
    assert [] == plan(store, document).changes()
    # one model and one piece of code behind several endpoints: no `&id001` and `*id001`, which nobody can edit
    first = next(iter(store.endpoints.values()))
    store.endpoints["again/1"] = {**first, "serving_url": "again", "version": "1"}
    text = state_file.written(state_file.document_of(store, store.task()), "t")
    assert [] == [line for line in text.splitlines() if line.split()[-1:] and line.split()[-1][:1] in "&*"]


def test_a_lost_task_is_restored(tmp_path: Path) -> None:
    """An empty Task gets everything of the lost one, with numbers and code; a second run changes nothing."""
    before = make_store(tmp_path)
    document = exported(before)
    store = FakeRegistry()
    store.models = before.models
    applied(store, document)
    old, new = decode(before.task()), decode(store.task())
    assert set(old.endpoints) == set(new.endpoints)
    for url, endpoint in old.endpoints.items():
        assert (endpoint.engine, endpoint.model_id, endpoint.inputs, endpoint.options, endpoint.is_auto) == (
            new.endpoints[url].engine, new.endpoints[url].model_id, new.endpoints[url].inputs,
            new.endpoints[url].options, new.endpoints[url].is_auto,
        ), url  # fmt: skip
    assert (old.canaries, old.metrics, old.defaults) == (new.canaries, new.metrics, new.defaults)
    assert {"faq": {"latency": "300ms"}} == old.objectives == new.objectives
    assert old.monitoring == new.monitoring
    assert [] == list(new.faults)
    assert [] == plan(store, document).changes()


def test_another_server_has_models_of_other_ids(tmp_path: Path) -> None:
    """Models are found by project and name; a missing or ambiguous one is refused by name."""
    document = exported(make_store(tmp_path))
    store = FakeRegistry()
    for name in ("m1", "m2", "m3"):
        store.add_model(f"other-{name}", tmp_path / name, name=f"model {name}", project="models")
    applied(store, document)
    assert "other-m1" == decode(store.task()).endpoints["faq/1"].model_id
    store.add_model("again", tmp_path / "m1", name="model m1", project="models")
    with pytest.raises(DeployError, match="2 models are called models/model m1"):
        plan(store, document)
    del store.models["again"], store.models["other-m1"]
    with pytest.raises(DeployError, match="endpoint faq/1: this registry has no model models/model m1"):
        plan(store, document)


def test_what_differs_is_told_and_only_that_is_written(tmp_path: Path) -> None:
    """Unchanged sections keep their exact text."""
    store = make_store(tmp_path)
    document = exported(store)
    document["endpoints"]["faq/1"]["model_id"] = "m3"
    document["endpoints"]["faq/3"] = {"engine_type": "triton", "version": "3", "model_id": "second"}
    document["models"]["second"] = {"name": "model m2"}
    document["code"]["py_code_team_hook"] = {"preprocess.py": CODE + "# more\n"}
    found = plan(store, document)
    assert [
        "~ code py_code_team_hook  preprocess.py", "~ endpoint faq/1  model_id: m1 → m3", "+ endpoint faq/3",
    ] == [*map(state_file.described, found.changes())]  # fmt: skip
    before = store.task()
    state_file.apply(store, found, by="me")
    after = store.task()
    for name in ("canary", "model_monitoring", "metric_logging", "model_monitoring_eps"):
        assert before.sections.get(name, "") == after.sections.get(name, "")
    serving = decode(after)
    assert ("m3", "m2") == (serving.endpoints["faq/1"].model_id, serving.endpoints["faq/3"].model_id)
    assert ("faq", "3") == (serving.endpoints["faq/3"].endpoint, serving.endpoints["faq/3"].version)
    assert [] == plan(store, document).changes()


def test_weights_and_code_are_written(tmp_path: Path) -> None:
    """What the file does not have is removed; code, of several files too, is a change of the endpoints that have it."""
    store = make_store(tmp_path)
    recorder.look(store)
    document = exported(store)
    document["canaries"]["live"]["weights"] = [0.5, 0.5]
    files = {"preprocess.py": CODE, "parts/words.py": "WORDS = ['ä']\n"}
    document["code"]["py_code_team_hook"] = files
    applied(store, document)
    assert (0.5, 0.5) == decode(store.task()).canaries["live"].weights
    assert files == exported(store)["code"]["py_code_team_hook"]
    del document["canaries"]["live"], document["objectives"]["faq"], document["metrics"]["faq/*"]
    del document["defaults"]["faq"]  # an endpoint with versions always has a default version: it stays
    recorder.look(store)
    found = [state_file.described(change) for change in plan(store, document).changes()]
    assert ["- canary live", "- metrics faq/*", "- objective faq"] == found
    applied(store, document)
    left = decode(store.task())
    assert ({}, {}, {}, {"faq": "faq/2"}) == (left.canaries, left.metrics, left.objectives, left.defaults)
    recorder.look(store)
    told = [one.subject for one in recorder.read(store).entries]
    assert ["faq", "faq/*", "live", "live", "team/hook"] == sorted(told)


def test_who_changes_the_task_meanwhile_is_not_undone(tmp_path: Path) -> None:
    """If the Task has changed since it was read, nothing is written."""
    store = make_store(tmp_path)
    document = exported(store)
    document["endpoints"]["faq/1"]["model_id"] = "m3"
    found = plan(store, document)
    store.add_endpoint("new", "m1")
    with pytest.raises(DeployError, match="someone else"):
        state_file.apply(store, found, by="me")
    assert {"m1"} == {decode(store.task()).endpoints[url].model_id for url in ("new", "faq/1")}


@pytest.mark.parametrize("name", ["../escaped.py", "/escaped.py", "a/../../escaped.py", "..\\\\escaped.py"])
def test_code_that_would_leave_its_folder_is_not_exported(tmp_path: Path, name: str) -> None:
    """Nor is what it holds, because `apply` would write it there."""
    store = make_store(tmp_path)
    with zipfile.ZipFile(tmp_path / "code.zip", "w") as packed:
        packed.writestr(name, CODE)
    store.attached["attached://0/code.zip"] = (tmp_path / "code.zip").read_bytes()
    store.artifacts = {
        "py_code_team_hook": ArtifactRef("py_code_team_hook", "attached://0/code.zip", None, is_archive=True)
    }
    with pytest.raises(ArtifactCorrupt, match="holds the unsafe path"):
        state_file.document_of(store, store.task())


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("{", "is not valid YAML"), ("[]", "not the state of a serving Task"), ("version: 2", "no `version: 1`"),
        ("version: 1\nendpoint: {}", "state.yaml: endpoint: Extra inputs"),
        ("version: 1\nendpoints: []", "state.yaml: endpoints: Input should be a valid dict"),
        ("version: 1\nobjectives: {a: {latency: soon}}", "latency: 'soon' is not a duration"),
        ("version: 1\nobjectives: {a: {speed: 1}}", "unknown part speed"),
        ("version: 1\nendpoints: {a: 1}", "endpoints a: Input should be a valid dictionary"),
        ("version: 1\ndefaults: {a: {}}", "defaults a: Input should be a valid string"),
        ("version: 1\ncode: {a: {../x.py: a}}", r"code a .*the unsafe path '\.\./x\.py'"),
        ('version: 1\ncode: {a: {"x\\0.py": a}}', "the unsafe path"),
        (f"version: 1\ncode: {{a: {{{'n' * 300}.py: a}}}}", "a name that is too long"),
        ("version: 1\ncode: {a: {x.py: 7}}", "code a x.py: Input should be a valid str"),
        ("version: 1\ncode: {../a: {x.py: y}}", "code ../a .*should match pattern"),
        ("version: 1\nendpoints: {/: {}}", "a name is empty"),
        ("version: 1\nmodels: {a: {ids: m}}", "models a name: Field required"),
        ("version: 1\nendpoints: {a: {version: 2}}", "named after its version"),
        ("version: 1\nendpoints: {a: {model_id: [m]}}", "no model \\['m'\\]"),
        ("version: 1\ncode: {a: {}}", "at least 1 item"),
        ("version: 1\nversions: {a: m}", "versions a .*should match pattern"),
        ("version: 1\nendpoints: !!python/object:os.system {}", "is not valid YAML"),
    ],
)  # fmt: skip
def test_files_that_cannot_be_used_are_refused_in_a_sentence(text: str, says: str) -> None:
    """Each mistake in a hand-written file gives one sentence."""
    with pytest.raises(DeployError, match=says):
        state_file.resolved(FakeRegistry(), state_file.parsed(text, "state.yaml"))


def test_a_lost_endpoint_is_restored_by_what_the_history_kept(tmp_path: Path) -> None:
    """Its fields are enough, if its code is still attached to the Task."""
    store = make_store(tmp_path)
    before = decode(store.task()).endpoints["team/hook"]
    kept = changes.entries(store.task(), "endpoints")
    del store.endpoints["team/hook"]
    text = json.dumps({"version": 1, "endpoints": {"team/hook": kept["team/hook"]}})
    lost = state_file.parsed(text, "lost.json")
    state_file.apply(store, state_file.compared(store, lost, prune=False), by="me")
    assert before == decode(store.task()).endpoints["team/hook"]
    with pytest.raises(DeployError, match="endpoint team/hook: its preprocess code 'py_code_team_hook' is not attach"):
        state_file.check(FakeRegistry(), state_file.compared(FakeRegistry(), lost, prune=False))

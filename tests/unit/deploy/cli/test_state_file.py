"""``export``, ``diff`` and ``apply``: nothing gets lost, and only differences are written."""

from __future__ import annotations

import json
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from deploy.cli import state_changes, state_file
from deploy.cli.commands.state import apply, diff, export
from deploy.controller.history import changes, recorder
from deploy.tools import sections
from deploy.tools.errors import DeployError
from gateway.errors import ArtifactCorrupt
from gateway.objectives import Objective
from gateway.spec import ArtifactRef, decode
from tests.fakes import FakeRegistry
from tests.unit.deploy.cli.commands.on_store import run

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
    store.write({}, [state_changes.objective.stated("faq", {"latency": "300ms"}, now=1, by="me")])
    store.write({}, [state_changes.default_versions.chosen("faq", "faq/2", now=1, by="me", why="test")])
    return store


@pytest.fixture
def store(tmp_path: Path) -> FakeRegistry:
    """See ``make_store``."""
    return make_store(tmp_path)


@pytest.fixture
def file(store: FakeRegistry, tmp_path: Path) -> Path:
    """What `export` writes of it."""
    assert 0 == run(export, store, "-o", str(tmp_path / "state.yaml"))
    return tmp_path / "state.yaml"


def exported(store: FakeRegistry) -> state_file.Document:
    """Export this store, and parse the text again."""
    text = state_file.written(state_file.document_of(store, store.task()), "a title")
    return state_file.parsed(text, "state.yaml")


def plan(store: FakeRegistry, document: state_file.Document) -> state_changes.Planned:
    """Return what is to be changed; what the document does not have is removed."""
    return state_changes.compared(store, document, prune=True)


def applied(store: FakeRegistry, document: state_file.Document) -> None:
    """Apply all changes."""
    state_changes.apply(store, plan(store, document), by="me")


def is_as(store: FakeRegistry, file: Path) -> bool:
    """Whether `diff` finds nothing, entries that only the Task has included."""
    return run(diff, store, "-f", str(file), "--exit-code", "--prune") == 0


def test_a_task_is_as_its_own_file_says(store: FakeRegistry, file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Exported to a file or the terminal, as YAML or JSON: names, numbers, code and unset fields."""
    assert is_as(store, file)
    assert 0 == run(apply, store, "-f", str(file), "--prune")
    assert "nothing to do" in capsys.readouterr().err
    assert 0 == run(export, store)
    text = file.read_text()
    assert text == capsys.readouterr().out
    assert "      class Preprocess:\n" in text
    assert "null" not in text
    document = yaml.safe_load(text)
    assert {"preprocess.py": CODE} == document["code"]["py_code_team_hook"]
    assert {"name": "model m1", "project": "models"} == document["models"][document["endpoints"]["faq/1"]["model_id"]]
    assert ({"auto/4": "m3"}, {"faq": "faq/2"}) == (document["versions"], document["defaults"])
    file.write_text(json.dumps(document))
    assert is_as(store, file)
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
    assert {"faq": Objective(within=0.3)} == old.objectives == new.objectives
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


def test_what_differs_is_told_and_only_that_is_written(
    store: FakeRegistry, file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """`diff` does nothing. Unchanged sections keep their exact text; what only the Task has stays without `--prune`."""
    document = yaml.safe_load(file.read_text())
    document["endpoints"]["faq/1"]["model_id"] = "m3"
    document["endpoints"]["faq/2"]["auxiliary_cfg"]["gateway"]["max_length"] = 64
    document["endpoints"]["faq/3"] = {"engine_type": "triton", "version": "3", "model_id": "second"}
    document["models"]["second"] = {"name": "model m2"}
    document["code"]["py_code_team_hook"] = {"preprocess.py": CODE + "# more\n"}
    file.write_text(yaml.safe_dump(document))
    store.add_endpoint("more", "m1")
    before = store.task()
    capsys.readouterr()
    assert (0, 2) == (run(diff, store, "-f", str(file)), run(diff, store, "-f", str(file), "--exit-code"))
    shown = capsys.readouterr()
    assert [
        "~ code py_code_team_hook  preprocess.py", "~ endpoint faq/1  model_id: m1 → m3",
        '~ endpoint faq/2  auxiliary_cfg: {"gateway": {"max_length": 128}} → {"gateway": {"max_length": 64}}',
        "+ endpoint faq/3",
    ] * 2 == shown.out.splitlines()  # fmt: skip
    assert "1 more entries are only in the serving Task" in shown.err
    assert before == store.task()
    assert 0 == run(apply, store, "-f", str(file))
    after = store.task()
    for name in ("canary", "model_monitoring", "metric_logging", "model_monitoring_eps"):
        assert before.sections.get(name, "") == after.sections.get(name, "")
    found = decode(after).endpoints
    assert ("m3", "m2", "64") == (found["faq/1"].model_id, found["faq/3"].model_id, found["faq/2"].option("max_length"))
    assert ("faq", "3", True) == (found["faq/3"].endpoint, found["faq/3"].version, "more" in found)
    assert 0 == run(diff, store, "-f", str(file), "--exit-code")
    assert not is_as(store, file)
    assert 0 == run(apply, store, "-f", str(file), "--prune")
    assert is_as(store, file)
    assert "more" not in decode(store.task()).endpoints


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda text: text.replace("engine_type: custom", "engine_type: nonsense"), "endpoint team/hook: engine"),
        (lambda text: text.replace("- 0.25", "- -1"), "canary live"),
        (lambda text: text.replace("    - faq/1", "    - faq/9"), "canary live"),
        (lambda text: text.replace("    - 0.75\n", ""), "canary live"),
        (lambda _: "version: 1\ndefaults: {faq: faq/9}",
         r"default faq: faq/9 is not one of its versions \(faq/1, faq/2\)"),
        (lambda _: "version: 1\ndefaults: {faq: auto/4}", "default faq: auto/4 is not one of its versions"),
    ],
    ids=["engine", "weight", "version of a canary", "a weight too few", "default", "default of another"],
)  # fmt: skip
def test_what_could_not_be_served_is_refused_before_anything_is_written(
    store: FakeRegistry, file: Path, change: Callable[[str], str], said: str
) -> None:
    """Also when it is only compared."""
    before = store.task()
    file.write_text(change(file.read_text()))
    for command in (diff, apply):
        with pytest.raises(DeployError, match=f"could not be served: {said}"):
            run(command, store, "-f", str(file))
    assert before == store.task()


def test_a_file_from_before_a_canary_leaves_the_canary_alone(store: FakeRegistry, file: Path) -> None:
    """While a canary answers a name, the default of that name has no effect; with `--prune` it answers again."""
    store.canary["faq"] = {"endpoint": "faq", "weights": [0.5, 0.5], "load_endpoints": ["faq/1", "faq/2"]}
    assert {} == decode(store.task()).defaults
    assert 0 == run(diff, store, "-f", str(file), "--exit-code")
    assert not is_as(store, file)
    assert 0 == run(apply, store, "-f", str(file), "--prune")
    assert {"faq": "faq/2"} == decode(store.task()).defaults
    assert is_as(store, file)


def test_who_changes_the_task_meanwhile_is_not_undone(store: FakeRegistry) -> None:
    """If the Task has changed since it was read, nothing is written."""
    document = exported(store)
    document["endpoints"]["faq/1"]["model_id"] = "m3"
    found = plan(store, document)
    store.add_endpoint("new", "m1")
    with pytest.raises(DeployError, match="someone else"):
        state_changes.apply(store, found, by="me")
    assert {"m1"} == {decode(store.task()).endpoints[url].model_id for url in ("new", "faq/1")}


def test_weights_and_code_are_written(store: FakeRegistry) -> None:
    """What the file does not have is removed; code, of several files too, is a change of the endpoints that have it."""
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
    found = [state_changes.described(change) for change in plan(store, document).changes()]
    assert ["- canary live", "- metrics faq/*", "- objective faq"] == found
    applied(store, document)
    left = decode(store.task())
    assert ({}, {}, {}, {"faq": "faq/2"}) == (left.canaries, left.metrics, left.objectives, left.defaults)
    recorder.look(store)
    told = [one.subject for one in recorder.read(store).entries]
    assert ["faq", "faq/*", "live", "live", "team/hook"] == sorted(told)


@pytest.mark.parametrize("name", ["../escaped.py", "/escaped.py"])
def test_code_that_would_leave_its_folder_is_not_exported(store: FakeRegistry, tmp_path: Path, name: str) -> None:
    """Nor is what it holds, because `apply` would write it there."""
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
        ("version: 1\nendpoints: []", "state.yaml: endpoints: Input should be a valid dict"),
        ("version: 1\nobjectives: {a: {latency: soon}}", "latency: 'soon' is not a duration"),
        ("version: 1\nobjectives: {a: {speed: 1}}", "unknown part speed"),
        ("version: 1\ncode: {a: {../x.py: a}}", r"code a .*the unsafe path '\.\./x\.py'"),
        ("version: 1\ncode: {../a: {x.py: y}}", "code ../a .*should match pattern"),
        ("version: 1\nendpoints: {a: {version: 2}}", "named after its version"),
        ("version: 1\nendpoints: {a: {model_id: [m]}}", "no model \\['m'\\]"),
        ("version: 1\nversions: {a: m}", "versions a .*should match pattern"),
        ("version: 1\nendpoints: !!python/object:os.system {}", "is not valid YAML"),
    ],
)  # fmt: skip
def test_files_that_cannot_be_used_are_refused_in_a_sentence(text: str, says: str) -> None:
    """Each mistake in a hand-written file gives one sentence."""
    with pytest.raises(DeployError, match=says):
        state_changes.resolved(FakeRegistry(), state_file.parsed(text, "state.yaml"))


def test_a_lost_endpoint_is_restored_by_what_the_history_kept(store: FakeRegistry) -> None:
    """Its fields are enough, if its code is still attached to the Task."""
    before = decode(store.task()).endpoints["team/hook"]
    kept = changes.entries(store.task(), "endpoints")
    del store.endpoints["team/hook"]
    text = json.dumps({"version": 1, "endpoints": {"team/hook": kept["team/hook"]}})
    lost = state_file.parsed(text, "lost.json")
    state_changes.apply(store, state_changes.compared(store, lost, prune=False), by="me")
    assert before == decode(store.task()).endpoints["team/hook"]
    with pytest.raises(DeployError, match="endpoint team/hook: its preprocess code 'py_code_team_hook' is not attach"):
        state_changes.check(FakeRegistry(), state_changes.compared(FakeRegistry(), lost, prune=False))

"""``triton-gateway export``, ``diff`` and ``apply``: their output and exit codes; a second run changes nothing."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml

from deploy.cli.commands.state import apply, diff, export
from deploy.tools.errors import DeployError
from gateway.spec import decode
from tests.fakes import FakeRegistry
from tests.unit.deploy.cli.commands.on_store import run
from tests.unit.deploy.cli.test_state_file import make_store


@pytest.fixture
def store(tmp_path: Path) -> FakeRegistry:
    """See `make_store`."""
    return make_store(tmp_path)


def test_what_was_exported_is_what_is_there(
    store: FakeRegistry, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Exports to a file or the terminal have no differences to the Task; the same file as JSON has none either."""
    file = tmp_path / "state.yaml"
    assert 0 == run(export, store, "-o", str(file))
    assert (
        "1 code, 3 endpoints, 1 auto_update, 1 canaries, 1 metrics, 1 versions, 1 defaults" in capsys.readouterr().err
    )
    assert 0 == run(diff, store, "-f", str(file), "--exit-code", "--prune")
    assert 0 == run(apply, store, "-f", str(file), "--prune")
    assert "nothing to do" in capsys.readouterr().err
    assert 0 == run(export, store)
    assert file.read_text() == capsys.readouterr().out
    file.write_text(json.dumps(yaml.safe_load(file.read_text())))
    assert 0 == run(diff, store, "-f", str(file), "--exit-code", "--prune")


def test_a_comparison_says_all_and_does_nothing(
    store: FakeRegistry, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Applying the file then makes the changes, and a second run changes nothing."""
    file = tmp_path / "state.yaml"
    run(export, store, "-o", str(file))
    file.write_text(file.read_text().replace("max_length: 128", "max_length: 64"))
    store.add_endpoint("more", "m1")
    before = store.task()
    assert 2 == run(diff, store, "-f", str(file), "--exit-code")
    capsys.readouterr()
    assert 0 == run(diff, store, "-f", str(file))
    shown = capsys.readouterr()
    assert (
        '~ endpoint faq/2  auxiliary_cfg: {"gateway": {"max_length": 128}} → {"gateway": {"max_length": 64}}\n'
        == shown.out
    )
    assert "1 more entries are only in the serving Task" in shown.err
    assert before == store.task()
    assert 0 == run(apply, store, "-f", str(file))
    assert "64" == decode(store.task()).endpoints["faq/2"].option("max_length")
    assert "more" in decode(store.task()).endpoints
    assert 0 == run(diff, store, "-f", str(file), "--exit-code")
    assert 2 == run(diff, store, "-f", str(file), "--exit-code", "--prune")
    assert 0 == run(apply, store, "-f", str(file), "--prune")
    assert "more" not in decode(store.task()).endpoints


def test_what_could_not_be_served_is_refused_before_anything_is_written(store: FakeRegistry, tmp_path: Path) -> None:
    """For example an unknown engine, or a canary with a removed version."""
    file = tmp_path / "state.yaml"
    run(export, store, "-o", str(file))
    before, exported = store.task(), file.read_text()
    for old, new, said in (
        ("engine_type: custom", "engine_type: nonsense", "endpoint team/hook: engine"),
        ("- 0.25", "- -1", "canary live"),
        ("    - faq/1", "    - faq/9", "canary live"),
        ("    - 0.75\n", "", "canary live"),
    ):
        text = exported.replace(old, new)
        assert text != exported
        file.write_text(text)
        with pytest.raises(DeployError, match=f"could not be served: {said}"):
            run(apply, store, "-f", str(file))
    assert before == store.task()


def test_a_default_of_a_version_that_is_not_there_is_refused(store: FakeRegistry, tmp_path: Path) -> None:
    """Also when it is only compared: nothing would be served under that name."""
    file = tmp_path / "state.yaml"
    before = store.task()
    for url in ("faq/9", "auto/4"):
        file.write_text(f"version: 1\ndefaults: {{faq: {url}}}\n")
        for command in (diff, apply):
            with pytest.raises(DeployError, match=rf"default faq: {url} is not one of its versions \(faq/1, faq/2\)"):
                run(command, store, "-f", str(file))
    assert before == store.task()


def test_a_file_from_before_a_canary_is_applied_and_leaves_the_canary_alone(
    store: FakeRegistry, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """While a canary answers a name, the default of that name has no effect; with `--prune` it answers again."""
    file = tmp_path / "state.yaml"
    run(export, store, "-o", str(file))
    store.canary["faq"] = {"endpoint": "faq", "weights": [0.5, 0.5], "load_endpoints": ["faq/1", "faq/2"]}
    assert {} == decode(store.task()).defaults
    assert 0 == run(diff, store, "-f", str(file), "--exit-code")
    capsys.readouterr()
    assert 0 == run(apply, store, "-f", str(file))
    assert "nothing to do" in capsys.readouterr().err
    assert 2 == run(diff, store, "-f", str(file), "--exit-code", "--prune")
    assert 0 == run(apply, store, "-f", str(file), "--prune")
    assert {"faq": "faq/2"} == decode(store.task()).defaults
    assert 0 == run(diff, store, "-f", str(file), "--exit-code", "--prune")

"""``triton-gateway optimize`` as a user types it: a tiny model to a bundle, a registered model, an endpoint."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from deploy.bundles.export.original import Original
from deploy.bundles.judge import parity
from deploy.bundles.pack import manifest
from deploy.cli.main import main
from deploy.sync.model_folder import execution
from gateway import samples as stored
from gateway.registry import ArtifactCache, ClearMLRegistry, Upload
from preprocessing.processor import TextProcessor
from tests.control_planes import RunningControlPlane
from tests.e2e.test_up_demo import command
from tests.stock import Client
from tests.waiting import LIMIT_S

from . import tiny

pytestmark = pytest.mark.integration

Optimize = Callable[..., "subprocess.CompletedProcess[str]"]
NOTHING: Mapping[str, str] = {}


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a tiny classifier and texts of the user's own."""
    folder = tmp_path_factory.mktemp("optimize")
    tiny.make(folder / "model")
    whats, hows, whys = ("train", "hotel", "film", "food", "bus"), ("late", "good", "bad", "cold", "new"), range(5)
    lines = [f"the {what} was {how} and cost {why} euros" for what in whats for how in hows for why in whys]
    (folder / "texts.txt").write_text("\n".join(lines))
    return folder


@pytest.fixture
def optimize_here(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Optimize:
    """The command in this process, which has loaded torch."""
    for name in os.environ:
        if name.startswith(("CLEARML_", "TRITON_GATEWAY_")):
            monkeypatch.delenv(name)

    def run(
        place: Path, *arguments: str, model: str = "model", environment: Mapping[str, str] = NOTHING
    ) -> subprocess.CompletedProcess[str]:
        monkeypatch.chdir(place)
        for name, value in environment.items():
            monkeypatch.setenv(name, value)
        capsys.readouterr()
        code = main(["optimize", model, "--quick", "--output", "out", *arguments])
        return subprocess.CompletedProcess(arguments, code, *capsys.readouterr())

    return run


def deploy(environment: Mapping[str, str], place: Path, model: Path, endpoint: str) -> None:
    """Deploy until the endpoint is added, as no gateway answers. Ctrl-C then leaves it, and says so with the command
    that removes it.
    """
    argv = [*command(), "deploy", str(model), "--endpoint", endpoint, "--url", "http://127.0.0.1:9"]
    said = ""
    with subprocess.Popen(argv, env=environment, cwd=place, stderr=subprocess.PIPE, text=True) as running:
        assert running.stderr is not None
        for line in running.stderr:
            if f"waiting for {endpoint}/1" in line and f"waiting for {endpoint}/1" not in said:
                running.send_signal(signal.SIGINT)  # once: another one would stop what it then says
            said += line
        running.wait(LIMIT_S)
    assert 130 == running.returncode, said
    assert f"model remove --endpoint {endpoint}/1" in said
    assert "] stopped" in said
    assert "Traceback" not in said


def test_a_registered_model_becomes_a_bundle_that_is_served(
    server: RunningControlPlane, place: Path, optimize_here: Optimize
) -> None:
    """What is deployed of it is tuned as it was measured, and its lineage leads to the training of the original."""
    client = Client(server, place)
    client.create("optimize")
    with client.here():
        registry = ClearMLRegistry(client.task)
        training = registry.call("tasks", "create", {"name": "train tiny", "type": "training"})["id"]
        trained = registry.register(Upload(place / "model", "nlp", "tiny", "PyTorch", task=training, scratch=place))
    asked = {name: value for name, value in client.environment.items() if name.startswith("CLEARML_")}
    done = optimize_here(place, "--samples", "texts.txt", "--candidate", "openvino-fp32", "--name", "tiny", "--json",
                         model=trained, environment=asked)  # fmt: skip
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    bundle = Path(found["bundle"])
    # the bundle: reproducible, and read by those who will read it
    assert found["files"] == manifest.hashes(bundle)
    assert {"model.onnx", "tokenizer.json", "config.json"} <= set(found["files"])
    wanted = execution.read_execution(bundle)
    assert wanted is not None
    assert ("openvino", "fp32") == (wanted.engine, wanted.precision)
    kept = stored.read(bundle)
    assert kept is not None
    processor = TextProcessor.from_folder(bundle)
    assert all(processor.prepare(sample.body).rows for sample in kept.samples)
    assert "model add --engine triton --endpoint ENDPOINT" in found["serve"]
    # the registry
    deploy({**client.environment, "CLEARML_SERVING_TASK_ID": client.task}, place, bundle, "tiny")
    with client.here():
        registry = ClearMLRegistry(client.task)
        served = registry.spec().endpoints["tiny/1"]
        files = ArtifactCache(place / "cache", registry).model(registry.model(str(served.model_id)))
        told = registry.lineage(str(served.model_id))
    assert found["files"] == manifest.hashes(files)
    assert "threads" in str(served.auxiliary_json)
    assert ("train tiny", "training") == (told["task"]["name"], told["task"]["type"])


@pytest.mark.long
def test_a_model_that_is_deployed_is_exported_first(server: RunningControlPlane, place: Path) -> None:
    """One command from a folder as transformers saves it to an endpoint."""
    client = Client(server, place)
    client.create("deploy")
    deploy({**client.environment, "CLEARML_SERVING_TASK_ID": client.task}, place, place / "model", "exported")
    with client.here():
        registry = ClearMLRegistry(client.task)
        model = registry.model(str(registry.spec().endpoints["exported/1"].model_id))
        assert "model.onnx" in manifest.hashes(ArtifactCache(place / "cache", registry).model(model))


def test_nothing_of_an_interrupted_run_stays_behind(
    place: Path, optimize_here: Optimize, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ctrl-C in the middle."""
    before = set((place / "out").glob("*"))

    def interrupted(*_: Any) -> None:
        assert set((place / "out").glob("*")) > before
        raise KeyboardInterrupt

    monkeypatch.setattr(Original, "export", interrupted)
    assert 130 == optimize_here(place).returncode
    assert before == set((place / "out").glob("*"))


@pytest.mark.long
def test_what_is_beyond_tolerance_is_made_only_for_a_reason(
    place: Path, optimize_here: Optimize, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Exit code 1, what is beyond, the way out, and no bundle; a reason is in the manifest and in the report."""
    monkeypatch.setattr(parity, "EXACT", replace(parity.EXACT, mean_cosine=2.0))  # which no candidate has
    arguments = ("--samples", "texts.txt", "--candidate", "openvino-fp32", "--name")
    done = optimize_here(place, *arguments, "no")
    assert done.returncode == 1
    assert "no candidate is within tolerance (openvino-fp32: mean cosine" in done.stderr
    assert '--accept "REASON"' in done.stderr
    assert not list((place / "out").glob("no-*"))
    done = optimize_here(place, *arguments, "yes", "--accept", "only a test", "--json")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert "only a test" == found["accepted"]


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--candidate", "tensorflow"], "there is no candidate tensorflow for a cpu"),
        (["--target", "gpu", "--candidate", "ort-fp32"], "there is no candidate ort-fp32 for a gpu"),
        (["--task", "dancing"], "there is no task dancing"),
    ],
)
def test_a_wrong_command_line_is_refused_at_once(
    place: Path, optimize_here: Optimize, arguments: list[str], says: str
) -> None:
    """One line, before anything heavy."""
    done = optimize_here(place, *arguments)
    assert done.returncode == 1
    assert says in done.stderr
    assert "Traceback" not in done.stderr

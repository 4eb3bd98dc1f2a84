"""The unmodified clearml-serving 1.3.5 CLI, every subcommand, against the embedded control plane."""

# ruff: noqa: D103 - a test's name states its rule

import hashlib
import json
import os
import re
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from deploy.controlplane.testing import RunningControlPlane, control_plane
from deploy.tools import sections
from deploy.tools.clearml_serving import PROGRAM

pytestmark = pytest.mark.integration

INPUT = ["--input-size", "1", "28", "28", "--input-name", "x", "--input-type", "float32"]
SIGNATURE = [*INPUT, "--output-size", "-1", "10", "--output-name", "y", "--output-type", "float32"]
PBTXT = 'platform: "onnxruntime_onnx"\nmax_batch_size: 16\ndynamic_batching { preferred_batch_size: [ 4, 8 ] }\n'


@dataclass(frozen=True, slots=True)
class Done:
    """What one command printed and how it ended."""

    code: int
    text: str

    @property
    def new_id(self) -> str:
        """The first id in the output."""
        found = re.search(r"[0-9a-f]{32}", self.text)
        assert found is not None, self.text
        return found[0]

    def after(self, words: str) -> str:
        """The id that follows `words`."""
        found = re.search(rf"{re.escape(words)}\s*([0-9a-f]{{32}})", self.text)
        assert found is not None, self.text
        return found[1]


class Cli:
    """Runs clearml-serving and looks into the registry behind it."""

    def __init__(self, server: RunningControlPlane, directory: Path) -> None:
        self.server = server
        self.directory = directory
        self.environment = server.client_environment(os.environ, directory)

    def __call__(self, *arguments: str, code: int = 0, service: str | None = None) -> Done:
        chosen = ["--id", service] if service else []
        ended = subprocess.run(
            [sys.executable, *PROGRAM, *chosen, *arguments],
            env=self.environment,
            cwd=self.directory,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=120,
        )
        assert ended.returncode == code, ended.stdout
        return Done(ended.returncode, ended.stdout)

    def upload(self, service: str, name: str, *arguments: str, project: str = "uploads", code: int = 0) -> Done:
        """`model upload`."""
        return self("model", "upload", "--name", name, "--project", project, *arguments, code=code, service=service)

    def request(self, path: str, body: Any = None) -> bytes:
        keys = self.server.credentials
        manager = urllib.request.HTTPPasswordMgrWithPriorAuth()
        manager.add_password(None, self.server.url, keys.access_key, keys.secret_key, is_authenticated=True)
        opener = urllib.request.build_opener(urllib.request.HTTPBasicAuthHandler(manager))
        data = json.dumps(body).encode() if body is not None else None
        with opener.open(urllib.request.Request(f"{self.server.url}/{path}", data=data), timeout=20) as answer:
            content: bytes = answer.read()
        return content

    def call(self, name: str, /, **body: Any) -> dict[str, Any]:
        data: dict[str, Any] = json.loads(self.request(name, body))["data"]
        return data

    def task(self, service: str) -> dict[str, Any]:
        found: dict[str, Any] = self.call("tasks.get_by_id", task=service)["task"]
        return found

    def section(self, service: str, name: str) -> dict[str, Any]:
        return sections.parse(self.task(service)["configuration"][name]["value"])

    def model(self, model: str) -> dict[str, Any]:
        found: dict[str, Any] = self.call("models.get_by_id", model=model)["model"]
        return found

    def download(self, uri: str) -> bytes:
        return self.request(uri.removeprefix(f"{self.server.url}/"))

    def file(self, name: str, content: bytes | str) -> str:
        path = self.directory / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content.encode() if isinstance(content, str) else content)
        return name


@pytest.fixture(scope="module")
def cli(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cli]:
    with control_plane(tmp_path_factory.mktemp("state")) as server:
        yield Cli(server, tmp_path_factory.mktemp("client"))


@pytest.fixture(scope="module")
def service(cli: Cli) -> str:
    """One service for all tests; every test uses endpoint names of its own."""
    return cli("create", "--name", "tested service", "--tags", "first", "second").after("id=")


@pytest.fixture(scope="module")
def model(cli: Cli, service: str) -> str:
    """A published model, tagged, in a project of its own."""
    cli.file("shared/model.onnx", b"shared weights")
    arguments = ["--path", "shared/model.onnx", "--tags", "blue", "--publish"]
    done = cli.upload(service, "shared model", *arguments, project="shared project")
    return done.after("new Model ID=")


def test_created_service_is_listed_and_complete(cli: Cli, service: str) -> None:
    task = cli.task(service)
    assert (task["type"], task["system_tags"], task["tags"]) == (
        "service",
        ["serving-control-plane"],
        ["first", "second"],
    )
    assert task["runtime"] == {"version": "1.3.5"}
    assert {name: item["value"] for name, item in task["configuration"].items()}.keys() == {
        "endpoints",
        "canary",
        "model_monitoring",
        "metric_logging",
    }
    listed = cli("list").text
    assert f"'id': '{service}'" in listed
    assert "'tags': ['first', 'second']" in listed
    assert "'project': 'DevOps'" in listed


def test_configuration_is_written_as_hyperparameters(cli: Cli) -> None:
    other = cli("create", "--name", "configured service", "--project", "DevOps/Sub").after("id=")
    arguments = ["--base-serving-url", "http://127.0.0.1:1/serve", "--triton-grpc-server", "127.0.0.1:2"]
    cli("config", *arguments, "--kafka-metric-server", "127.0.0.1:3", service=other)
    general = cli.task(other)["hyperparams"]["General"]
    assert {name: item["value"] for name, item in general.items()} == {
        "serving_base_url": "http://127.0.0.1:1/serve",
        "triton_grpc_server": "127.0.0.1:2",
        "kafka_service_server": "127.0.0.1:3",
    }


def test_uploaded_file_is_published_with_tags_and_comes_back_unchanged(cli: Cli, model: str) -> None:
    stored = cli.model(model)
    assert (stored["name"], stored["tags"], stored["ready"], stored["framework"]) == (
        "shared model",
        ["blue"],
        True,
        "ONNX",
    )
    assert stored["uri"].endswith("/models/model.onnx")
    assert cli.download(stored["uri"]) == b"shared weights"
    project = cli.call("projects.get_by_id", project=stored["project"])["project"]
    assert project["name"] == "shared project"


def test_uploaded_folder_is_a_package(cli: Cli, service: str) -> None:
    cli.file("folder/1/model.plan", b"plan")
    cli.file("folder/labels.txt", "a\nb\n")
    done = cli.upload(service, "folder model", "--path", "folder", "--framework", "tensorflow")
    stored = cli.model(done.after("new Model ID="))
    assert stored["system_tags"] == ["package"]
    assert stored["uri"].endswith(".zip")
    assert cli.download(stored["uri"])[:2] == b"PK"


def test_registered_url_is_kept_as_it_is(cli: Cli, service: str) -> None:
    done = cli.upload(service, "remote model", "--url", "s3://bucket/m.onnx")
    assert cli.model(done.after("new Model ID="))["uri"] == "s3://bucket/m.onnx"


def test_second_upload_with_the_same_file_name_leaves_the_published_model_alone(cli: Cli, service: str) -> None:
    ids = []
    for content, publish in ((b"published bytes", ["--publish"]), (b"other bytes", [])):
        cli.file("again/model.onnx", content)
        done = cli.upload(service, "again model", "--path", "again/model.onnx", *publish)
        ids.append(done.after("new Model ID="))
    contents = [cli.download(cli.model(model_id)["uri"]) for model_id in ids]
    assert contents == [b"published bytes", b"other bytes"]


def test_file_names_with_special_characters_can_be_downloaded(cli: Cli, service: str) -> None:
    """A stock server stores an address with a raw # and ?, from which nothing can be downloaded."""
    name = cli.file("модель 1#a?.onnx", b"special")
    stored = cli.model(cli.upload(service, "special model", "--path", name).after("new Model ID="))
    assert cli.download(stored["uri"]) == b"special"


def test_model_is_added_by_id_with_options_and_preprocess_file(cli: Cli, service: str, model: str) -> None:
    cli.file("code/preprocess.py", "class Preprocess:\n    pass\n")
    options = ["--aux-config", "max_batch_size=16", "dynamic_batching.preferred_batch_size=[4,8]"]
    arguments = ["--engine", "triton", "--endpoint", "by_id", "--version", "1", "--model-id", model, *SIGNATURE]
    cli("model", "add", *arguments, "--preprocess", "code/preprocess.py", *options, service=service)
    endpoint = cli.section(service, "endpoints")["by_id/1"]
    assert (endpoint["model_id"], endpoint["preprocess_artifact"]) == (model, "py_code_by_id_1")
    assert endpoint["auxiliary_cfg"]["max_batch_size"] == 16
    assert endpoint["input_size"] == [[1, 28, 28]]
    artifacts = {item["key"]: item for item in cli.task(service)["execution"]["artifacts"]}
    code = artifacts["py_code_by_id_1"]
    content = cli.download(code["uri"])
    assert content == b"class Preprocess:\n    pass\n"
    assert code["hash"] == hashlib.sha256(content).hexdigest()


def test_model_is_added_by_query_with_folder_and_pbtxt(cli: Cli, service: str, model: str) -> None:
    cli.file("package/__init__.py", "class Preprocess:\n    pass\n")
    cli.file("config.pbtxt", PBTXT)
    query = ["--name", "shared model", "--project", "shared project", "--tags", "blue", "--published"]
    arguments = ["--engine", "triton", "--endpoint", "by_query", *query, *SIGNATURE]
    cli("model", "add", *arguments, "--preprocess", "package", "--aux-config", "config.pbtxt", service=service)
    endpoint = cli.section(service, "endpoints")["by_query"]
    assert endpoint["model_id"] == model
    assert endpoint["auxiliary_cfg"] == PBTXT
    artifacts = {item["key"]: item for item in cli.task(service)["execution"]["artifacts"]}
    assert artifacts["py_code_by_query"]["uri"].endswith("/package.zip")
    listed = cli("model", "list", service=service).text
    assert '"by_query": {' in listed


def test_missing_model_is_not_found(cli: Cli, service: str) -> None:
    arguments = ["--engine", "triton", "--endpoint", "never", "--name", "no such model", *SIGNATURE]
    done = cli("model", "add", *arguments, service=service, code=1)
    assert "Could not find any Model" in done.text
    assert "never" not in cli.section(service, "endpoints")


def test_removed_endpoint_is_gone(cli: Cli, service: str, model: str) -> None:
    arguments = ["--engine", "triton", "--endpoint", "to_remove", "--model-id", model, *SIGNATURE]
    cli("model", "add", *arguments, service=service)
    assert "to_remove" in cli.section(service, "endpoints")
    cli("model", "remove", "--endpoint", "to_remove", service=service)
    assert "to_remove" not in cli.section(service, "endpoints")


def test_canary_has_weights_over_fixed_endpoints_or_a_prefix(cli: Cli, service: str) -> None:
    fixed = ["--endpoint", "fixed_canary", "--weights", "0.1", "0.9", "--input-endpoints", "m/2", "m/1"]
    cli("model", "canary", *fixed, service=service)
    prefix = ["--endpoint", "prefix_canary", "--weights", "0.2", "0.8", "--input-endpoint-prefix", "m"]
    cli("model", "canary", *prefix, service=service)
    canary = cli.section(service, "canary")
    assert canary["fixed_canary"]["weights"] == [0.1, 0.9]
    assert canary["fixed_canary"]["load_endpoints"] == ["m/2", "m/1"]
    assert canary["prefix_canary"]["load_endpoint_prefix"] == "m"


def test_auto_update_is_recorded_and_removed(cli: Cli, service: str) -> None:
    query = ["--name", "shared model", "--project", "shared project", "--published", "--max-versions", "2"]
    cli("model", "auto-update", "--engine", "triton", "--endpoint", "auto", *query, *SIGNATURE, service=service)
    rule = cli.section(service, "model_monitoring")["auto"]
    assert (rule["monitor_name"], rule["only_published"], rule["max_versions"]) == ("shared model", True, 2)
    cli("model", "remove", "--endpoint", "auto", service=service)
    assert "auto" not in cli.section(service, "model_monitoring")


def test_metrics_are_added_listed_and_removed(cli: Cli, service: str, model: str) -> None:
    arguments = ["--engine", "triton", "--endpoint", "measured", "--model-id", model, *SIGNATURE]
    cli("model", "add", *arguments, service=service)
    variables = [
        "--variable-scalar",
        "x0=0,0.1,0.5,1",
        "--variable-enum",
        "animal=cat,dog",
        "--variable-value",
        "latency",
    ]
    cli("metrics", "add", "--endpoint", "measured", "--log-freq", "0.5", *variables, service=service)
    rule = cli.section(service, "metric_logging")["measured"]
    assert rule["log_frequency"] == 0.5
    assert {name: item["type"] for name, item in rule["metrics"].items()} == {
        "x0": "scalar",
        "animal": "enum",
        "latency": "value",
    }
    assert "animal" in cli("metrics", "list", service=service).text
    cli("metrics", "remove", "--endpoint", "measured", "--variable", "animal", service=service)
    assert cli.section(service, "metric_logging")["measured"]["metrics"].keys() == {"x0", "latency"}


def test_endpoints_added_at_the_same_time_all_survive(cli: Cli, model: str) -> None:
    """On a stock server the last writer's copy replaces the others' endpoints, and every command reports success."""
    shared = cli("create", "--name", "contended service").after("id=")
    names = [f"race_{letter}" for letter in "abcd"]

    def add(name: str) -> Done:
        arguments = ["--engine", "triton", "--endpoint", name, "--model-id", model, *SIGNATURE]
        return cli("model", "add", *arguments, service=shared)

    with ThreadPoolExecutor(len(names)) as pool:
        list(pool.map(add, names))
    assert cli.section(shared, "endpoints").keys() == set(names)
    assert {item["name"] for item in cli.task(shared)["models"]["input"]} == set(names)


def test_name_that_bricks_a_stock_service_leaves_ours_usable(cli: Cli, model: str) -> None:
    """One endpoint with such a name makes every further command fail on a stock server, for good."""
    fragile = cli("create", "--name", "fragile service").after("id=")
    for name in ("кир", "br{ace", 'quo"te'):
        arguments = ["--engine", "triton", "--endpoint", name, "--model-id", model, *SIGNATURE]
        cli("model", "add", *arguments, service=fragile)
    assert cli.section(fragile, "endpoints").keys() == {"кир", "br{ace"}
    assert "was not accepted" in cli.task(fragile)["status_message"]
    cli("model", "remove", "--endpoint", "br{ace", service=fragile)
    assert cli.section(fragile, "endpoints").keys() == {"кир"}


def test_upload_that_did_not_finish_is_not_published(cli: Cli, service: str) -> None:
    """The stock tools register and publish a model even where its upload failed; there is nothing to serve."""
    cli.file("lost/model.onnx", b"lost")
    arguments = ["--path", "lost/model.onnx", "--publish", "--destination", f"{cli.server.url}/nowhere"]
    cli.upload(service, "lost model", *arguments, code=1)
    (lost,) = cli.call("models.get_all", name="^lost model$")["models"]
    assert lost["ready"] is False


def test_wrong_keys_are_refused_with_clearmls_words(cli: Cli) -> None:
    stranger = Cli(cli.server, cli.directory)
    stranger.environment = cli.environment | {"CLEARML_API_SECRET_KEY": "wrong"}
    done = stranger("list", code=1)
    assert "error 401" in done.text
    assert "invalid credentials" in done.text


def test_all_calls_work_by_post(cli: Cli, service: str) -> None:
    posting = Cli(cli.server, cli.directory)
    posting.environment = cli.environment | {"CLEARML_API_DEFAULT_REQ_METHOD": "POST"}
    assert service in posting("list").text

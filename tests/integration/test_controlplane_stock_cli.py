"""The unmodified clearml-serving 1.3.5 CLI where its recorded exchanges do not reach, on the embedded control plane.

That every subcommand gets the answers of a real server is tests/contract's; here it goes on where a real one would not,
and says what it finds.
"""

# ruff: noqa: D103 - a test's name states its rule

from collections.abc import Iterator
from typing import Any

import pytest

from gateway import hocon
from tests.control_planes import control_plane
from tests.stock import Client

pytestmark = pytest.mark.integration

PBTXT = 'platform: "onnxruntime_onnx"\nmax_batch_size: 16\ndynamic_batching { preferred_batch_size: [ 4, 8 ] }\n'


@pytest.fixture(scope="module")
def cli(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    with control_plane(tmp_path_factory.mktemp("state")) as server:
        made = Client(server, tmp_path_factory.mktemp("client"))
        made.create("tested service")
        yield made


@pytest.fixture(scope="module")
def model(cli: Client) -> str:
    """A published model, tagged, in a project of its own."""
    (cli.folder / "model.onnx").write_bytes(b"shared weights")
    return cli.upload("shared model", "model.onnx", "--tags", "blue", project="shared project")


def task_of(cli: Client) -> dict[str, Any]:
    found: dict[str, Any] = cli.server.call("tasks.get_by_id", task=cli.task)["task"]
    return found


def endpoints_of(cli: Client) -> dict[str, Any]:
    return hocon.parse(task_of(cli)["configuration"]["endpoints"]["value"])


def test_model_is_added_by_query_with_folder_and_pbtxt(cli: Client, model: str) -> None:
    (cli.folder / "package").mkdir()
    (cli.folder / "package" / "__init__.py").write_text("class Preprocess:\n    pass\n")
    (cli.folder / "config.pbtxt").write_text(PBTXT)
    query = ("--name", "shared model", "--project", "shared project", "--tags", "blue", "--published")
    cli.add("by_query", *query, "--preprocess", "package", "--aux-config", "config.pbtxt")
    endpoint = endpoints_of(cli)["by_query"]
    assert endpoint["model_id"] == model
    assert endpoint["auxiliary_cfg"] == PBTXT
    artifacts = {item["key"]: item for item in task_of(cli)["execution"]["artifacts"]}
    assert artifacts["py_code_by_query"]["uri"].endswith("/package.zip")
    assert '"by_query": {' in cli.stock("model", "list")

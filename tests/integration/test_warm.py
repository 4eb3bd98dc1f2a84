"""A call of the stock tool that is forked (tests/warm.py) cannot be told from one that is started."""

# ruff: noqa: D103 - a test's name states its rule

import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping

import pytest

from deploy.tools.clearml_serving import PROGRAM
from tests import warm
from tests.control_planes import control_plane
from tests.stock import TENSORS, Client, ended

pytestmark = [pytest.mark.integration, pytest.mark.long]

STARTED: Mapping[str, Callable[[], tuple[str, ...]]] = {"true": lambda: PROGRAM, "forked": warm.tool}

NOWHERE = "http://127.0.0.1:9"

READ_BY_IMPORTS = """
import os
read = set()
class Recorded(type(os.environ)):
    def get(self, name, default=None):
        read.add(name)
        return super().get(name, default)
    def __contains__(self, name):
        read.add(name)
        return super().__contains__(name)
os.environ.__class__ = Recorded
exec(open(0).read())
print(*read)
"""


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    with control_plane(tmp_path_factory.mktemp("state")) as server:
        made = Client(server, tmp_path_factory.mktemp("client"))
        made.create("told twice")
        (made.folder / "model.onnx").write_bytes(b"weights")
        made.add("length", "--model-id", made.upload("a model", "model.onnx"))
        yield made


@pytest.mark.parametrize(
    ("code", "arguments"),
    [
        (0, ("--help",)),
        (2, ("model", "fly")),
        (0, ("--id", "TASK", "model", "list")),
        (0, ("--id", "TASK", "model", "add", "--engine", "triton", "--endpoint", "length", "--name", "a model",
             *TENSORS)),
        (1, ("--id", "0" * 32, "model", "list")),
    ],
)  # fmt: skip
def test_output_and_exit_status_are_the_same(client: Client, code: int, arguments: tuple[str, ...]) -> None:
    line = [client.task if one == "TASK" else one for one in arguments]
    told = []
    for program in STARTED.values():
        process = client.start(*program(), *line)
        texts = [re.sub(r"^\d\S* \S+ -", "", text, flags=re.M) for text in process.communicate(timeout=120)]
        told.append((*texts, process.returncode))
    assert code == told[0][2], told[0]
    assert told[0] == told[1]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
@pytest.mark.parametrize("program", STARTED.values(), ids=STARTED)
def test_a_signal_ends_it(client: Client, program: Callable[[], tuple[str, ...]], number: signal.Signals) -> None:
    """While it asks a server that does not answer; whoever reads its output reads the end of it."""
    asking = client.start(*program(), "create", "--name", "never", CLEARML_API_HOST=NOWHERE, PYTHONUNBUFFERED="1")
    assert asking.stdout is not None
    assert asking.stdout.readline().startswith("clearml-serving")
    asking.send_signal(number)
    ended(asking, code=-number)


def test_what_imports_read_is_told_to_the_true_program(client: Client) -> None:
    assert "CLEARML_OFFLINE_MODE" not in warm.KNOWN
    printed = subprocess.run(
        [sys.executable, "-c", READ_BY_IMPORTS], input=warm.PRELOAD, capture_output=True, text=True, check=True
    ).stdout
    read = {name for name in printed.split() if name.startswith("CLEARML_")}
    assert "CLEARML_TASK_ID" in read
    assert set() == read & warm.KNOWN

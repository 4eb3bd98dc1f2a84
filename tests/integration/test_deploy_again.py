"""`deploy` on a server with one file per name: no deployment changes what an earlier one serves, and none is taken back
when it is interrupted after its endpoint was added.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.control_planes import control_plane
from tests.e2e.test_deploy import WORDS
from tests.e2e.test_up_demo import command
from tests.stock import Client
from tests.waiting import LIMIT_S

pytestmark = pytest.mark.integration


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    """Of a user with a serving Task."""
    folder = tmp_path_factory.mktemp("client")
    with control_plane(folder / "state") as server:
        made = Client(server, folder)
        made.create("serving")
        yield made


def deploy(client: Client, model: Path, endpoint: str) -> str:
    """Deploy until the endpoint is added, as no gateway answers; return what was said. Ctrl-C then leaves it, and says
    so with the command that removes it.
    """
    argv = [*command(), "deploy", str(model), "--url", "http://127.0.0.1:9", "--endpoint", endpoint]
    environment = {**client.environment, "CLEARML_SERVING_TASK_ID": client.task}
    said = ""
    with subprocess.Popen(argv, env=environment, cwd=client.folder, stderr=subprocess.PIPE, text=True) as running:
        assert running.stderr is not None
        for line in running.stderr:
            if f"waiting for {endpoint}/1" in line and f"waiting for {endpoint}/1" not in said:
                running.send_signal(signal.SIGINT)  # once: another one would stop what it then says
            said += line
        running.wait(LIMIT_S)
    assert 130 == running.returncode, said
    assert f"{endpoint}/1 stays registered" in said
    assert f"model remove --endpoint {endpoint}/1" in said
    return said


def served(client: Client) -> dict[str, tuple[str, bytes]]:
    """Return the id and the bytes of each endpoint's model."""
    with client.here():
        from gateway.registry import ClearMLRegistry

        registry = ClearMLRegistry(client.task)
        ids = {url: str(one.model_id) for url, one in registry.spec().endpoints.items()}
        return {url: (one, client.server.download(registry.model(one).uri)) for url, one in ids.items()}


def test_a_deployment_leaves_what_is_served_as_it_is(client: Client, tmp_path: Path) -> None:
    """The same files are one model under any endpoint; other files of the same names are another one."""
    one = tmp_path / "one" / "words_model"
    shutil.copytree(WORDS, one)
    deploy(client, one, "first")
    before = served(client)

    again = tmp_path / "again" / "words_model"
    shutil.copytree(WORDS, again, copy_function=shutil.copyfile)
    for number, path in enumerate(again.rglob("*")):
        os.utime(path, (1_500_000_000 + 1000 * number,) * 2)
    said = deploy(client, again, "second")
    assert before == {"first/1": served(client)["first/1"]}
    assert served(client)["first/1"] == served(client)["second/1"]
    assert f"model {before['first/1'][0]} has exactly these files: it is used again" in said

    other = tmp_path / "other" / "words_model"
    shutil.copytree(WORDS, other)
    (other / "vocab.txt").write_text("other\n")
    deploy(client, other, "third")
    now = served(client)
    assert before == {"first/1": now["first/1"]}
    assert now["third/1"][0] != before["first/1"][0]
    assert now["third/1"][1] != before["first/1"][1]

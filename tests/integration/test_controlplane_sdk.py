"""The embedded control plane as a process, where the recorded exchanges of tests/contract do not reach: a kill, and
what is told of a Task that is gone.
"""

import asyncio
import hashlib
import http.client
import itertools
import signal
import threading
from pathlib import Path

import httpx
import pytest

from deploy.laptop.registry_process import is_there
from deploy.tools.errors import DeployError
from tests.control_planes import control_plane
from tests.stock import Client
from tests.waiting import LIMIT_S, until

pytestmark = pytest.mark.integration


def test_what_was_acknowledged_survives_a_kill_in_the_middle_of_writes(tmp_path: Path) -> None:
    """SIGKILL while four clients write documents and files: every acknowledged write is there, files are whole."""
    state = tmp_path / "state"
    acknowledged: list[tuple[str, str]] = []
    with control_plane(state) as server:

        def write(number: int) -> None:
            keys = server.credentials
            for count in itertools.count():
                path = f"P/{number}/{count}.bin"
                content = f"{path} ".encode() * 2000
                try:
                    sent = httpx.post(f"{server.url}/files", files={path: (path, content)},
                                      auth=(keys.access_key, keys.secret_key))  # fmt: skip
                    assert 200 == sent.status_code, sent.text
                    model = server.call("models.create", name=f"model {path}", uri=f"{server.url}/files/{path}")
                except (OSError, http.client.HTTPException, httpx.TransportError):  # the kill may cut off an answer
                    return
                acknowledged.append((model["id"], hashlib.sha256(content).hexdigest()))

        writers = [threading.Thread(target=write, args=(number,)) for number in range(4)]
        for writer in writers:
            writer.start()
        until(lambda: len(acknowledged) >= 40)
        server.process.send_signal(signal.SIGKILL)
        server.process.wait(LIMIT_S)
        for writer in writers:
            writer.join()
    assert len(acknowledged) >= 40
    with control_plane(state) as server:
        for model_id, sha in acknowledged:
            uri = server.call("models.get_by_id", model=model_id)["model"]["uri"]
            stored = server.download(f"{server.url}/files/{uri.partition('/files/')[2]}")
            assert sha == hashlib.sha256(stored).hexdigest(), uri
    assert list((state / "files" / "tmp").iterdir()) == []


@pytest.mark.long
def test_a_serving_task_that_is_gone_is_told_from_a_server_that_refuses(client: Client) -> None:
    """`up` makes a new one for the first, and says the second."""
    client.create("serving")
    env, log = client.environment, client.folder / "log"
    assert asyncio.run(is_there(client.task, env=env, log=log))
    assert not asyncio.run(is_there("0" * 32, env=env, log=log))
    with pytest.raises(DeployError, match="cannot be read"):
        asyncio.run(is_there(client.task, env={**env, "CLEARML_API_SECRET_KEY": "wrong"}, log=log))

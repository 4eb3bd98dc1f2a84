"""Models in a real S3-compatible store, uploaded by the unmodified SDK: fetched, refused, slow, cut off, away.

The store is versitygw, with toxiproxy in front of it; both are built from their Go modules once and kept outside the
repository (``tests/cluster/programs.py``). Not collected by default because that takes minutes: ``.ci/run clients``.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from deploy.tools import ports
from deploy.tools.clearml_serving import PROGRAM
from tests.cluster import programs
from tests.control_planes import control_plane
from tests.waiting import until

pytestmark = [pytest.mark.integration, pytest.mark.timeout(900)]

HERE = Path(__file__).parent
KEY, SECRET = "storekey", "storesecret123"
FILES = {
    "config.json": b"{}", "tokenizer.json": b'{"word": 1}' * 10_000, "model.onnx": os.urandom(4_000_000),
}  # fmt: skip
UPLOAD = """
import sys
from clearml import OutputModel, Task
name, folder, uri = sys.argv[1:]
Task._report_subprocess_enabled = False
task = Task.init(project_name="store", task_name=name, reuse_last_task_id=False, auto_connect_frameworks=False,
                 auto_resource_monitoring=False, auto_connect_streams=False, auto_connect_arg_parser=False)
model = OutputModel(task=task, name=name, framework="ONNX")
model.update_weights_package(weights_path=folder, upload_uri=uri, auto_delete_file=False, async_enable=False)
task.close()
print("MODEL", model.id)
"""


@dataclass
class Store:
    """The store, the proxy in front of it, a registry with one model in it, and what reads it."""

    folder: Path
    direct: str
    proxied: str
    admin: str
    task: str
    model: str
    environ: dict[str, str]

    def toxic(self, kind: str, **attributes: int) -> None:
        """Disturb what comes from the store."""
        body = {"name": kind, "type": kind, "stream": "downstream", "attributes": attributes}
        self.ask("/proxies/store/toxics", body)

    def ask(self, path: str, body: dict[str, Any] | None = None) -> None:
        """Tell the proxy something."""
        data = None if body is None else json.dumps(body).encode()
        with urllib.request.urlopen(
            urllib.request.Request(f"{self.admin}{path}", data=data, method="POST"), timeout=10
        ):
            pass

    def fetch(self, how: str, cache: str, *, secret: str = SECRET, timeout: float = 200.0) -> dict[str, Any]:
        """Fetch the model in a process of its own, through the proxy, with these keys."""
        host = self.proxied.removeprefix("s3://").partition("/")[0]
        configuration = self.folder / f"{cache}.conf"
        configuration.write_text(config(host, secret))
        done = subprocess.run(
            [sys.executable, str(HERE / "fetch.py"), how, self.task, self.model, str(self.folder / cache),
             f"{self.direct}={self.proxied}"],
            env={**self.environ, "CLEARML_CONFIG_FILE": str(configuration)}, capture_output=True, text=True,
            timeout=timeout, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        answer: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
        return answer

    def left(self, cache: str) -> list[str]:
        """What lies in a cache, its locks aside."""
        return [path.name for path in (self.folder / cache / "models").iterdir() if path.suffix != ".lock"]


def config(host: str, secret: str) -> str:
    """A ``clearml.conf`` for a store at ``host``; the keys of the API come from variables."""
    keys = f'host: "{host}", key: "{KEY}", secret: "{secret}", multipart: false, secure: false'
    return f"sdk {{ aws {{ s3 {{ credentials: [{{ {keys} }}] }} }} }}\n"


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    """Everything, with one folder uploaded by the SDK to ``s3://…``."""
    folder = tmp_path_factory.mktemp("store")
    (folder / "data" / "bucket").mkdir(parents=True)
    bundle = folder / "bundle"
    bundle.mkdir()
    for name, content in FILES.items():
        (bundle / name).write_bytes(content)
    found = programs.paths("versitygw", "toxiproxy")
    taken: set[int] = set()
    for _ in range(3):
        taken.add(ports.choose("127.0.0.1", 0, remembered=0, avoid=taken))
    s3, admin, proxied = taken
    commands = [
        [found["versitygw"], "--port", f"127.0.0.1:{s3}", "--access", KEY, "--secret", SECRET, "posix",
         "--nometa", folder / "data"],
        [found["toxiproxy-server"], "-host", "127.0.0.1", "-port", str(admin)],
    ]  # fmt: skip
    with control_plane(folder / "state") as server, (folder / "log").open("wb") as log:
        running = [subprocess.Popen([*map(str, command)], stdout=log, stderr=log) for command in commands]
        try:
            until(lambda: not ports.is_free("127.0.0.1", s3))
            until(lambda: not ports.is_free("127.0.0.1", admin))
            environ = server.client_environment(os.environ, folder)
            task = run([sys.executable, *PROGRAM, "create", "--name", "store"], environ, folder)
            given = Store(
                folder, f"s3://127.0.0.1:{s3}/bucket", f"s3://127.0.0.1:{proxied}/bucket", f"http://127.0.0.1:{admin}",
                task.split("id=")[1].split()[0].strip(" ,'\""), "", environ,
            )  # fmt: skip
            proxy = {"name": "store", "listen": f"127.0.0.1:{proxied}", "upstream": f"127.0.0.1:{s3}", "enabled": True}
            given.ask("/proxies", proxy)
            (folder / "upload.conf").write_text(config(f"127.0.0.1:{s3}", SECRET))
            told = run(
                [sys.executable, "-c", UPLOAD, "one", str(bundle), given.direct],
                {**environ, "CLEARML_CONFIG_FILE": str(folder / "upload.conf")}, folder,
            )  # fmt: skip
            given.model = told.split("MODEL ")[1].split()[0]
            yield given
        finally:
            for process in running:
                process.kill()
                process.wait(30)


def run(command: list[str], environ: dict[str, str], folder: Path) -> str:
    """What a program printed."""
    done = subprocess.run(command, env=environ, cwd=folder, capture_output=True, text=True, timeout=200, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(autouse=True)
def undisturbed(store: Store) -> Iterator[None]:
    """Every test begins and ends with a store that answers."""
    yield
    store.ask("/reset", {})


def sizes(*names: str) -> dict[str, int]:
    """Of these files of the model, or of all."""
    return {name: len(FILES[name]) for name in names or FILES}


def test_a_gateway_fetches_parts_and_model_sync_the_whole(store: Store) -> None:
    """Of what the unmodified SDK has put there."""
    part, whole = store.fetch("parts", "gateway"), store.fetch("whole", "sync")
    assert sizes("config.json", "tokenizer.json") == part["files"]
    assert sizes() == whole["files"]
    assert part["fetched"] < 300_000 < 4_000_000 < whole["fetched"]


def test_keys_that_are_refused_are_told_at_once(store: Store) -> None:
    """As a no, with what to look at; not tried for minutes."""
    for how in ("parts", "whole"):
        answer = store.fetch(how, f"refused-{how}", secret="another", timeout=60)
        assert answer["error"] == "RegistryRefused"
        assert "403" in answer["message"]
        assert "clearml.conf" in answer["hint"]


def test_a_slow_store_is_waited_for_and_the_log_says_how_far(store: Store) -> None:
    """4 MB at 400 KB/s."""
    store.toxic("bandwidth", rate=400)
    answer = store.fetch("whole", "slow")
    assert sizes() == answer["files"]
    assert any("of 4 MB" in line and "%" in line for line in answer["log"]), answer["log"]


def test_a_connection_that_is_cut_leaves_nothing_and_the_next_attempt_has_it(store: Store) -> None:
    """Also when it was cut twice."""
    for _ in range(2):
        store.toxic("limit_data", bytes=1_500_000)
        answer = store.fetch("whole", "cut")
        assert (answer["error"], answer["fetched"]) == ("RegistryUnavailable", 0)
        assert store.left("cut") == []
        store.ask("/reset", {})
    assert sizes() == store.fetch("whole", "cut")["files"]


def test_what_is_there_is_served_while_the_store_is_away(store: Store) -> None:
    """And who has nothing is told so within a minute, not after five attempts of a minute each."""
    before = store.fetch("parts", "away")
    store.ask("/proxies/store", {"enabled": False})
    again = store.fetch("parts", "away")
    assert (before["files"], 0) == (again["files"], again["fetched"])
    answer = store.fetch("parts", "new", timeout=60)
    assert answer["error"] == "RegistryUnavailable"
    assert store.left("new") == []

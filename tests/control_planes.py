"""A control plane for tests: as a real process on loopback (`control_plane`), or in this process (`in_process`)."""

import base64
import json
import os
import subprocess
import sys
import urllib.parse
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from starlette.testclient import TestClient

from deploy.controlplane.app import build
from deploy.controlplane.credentials import Credentials, environment
from deploy.controlplane.server import read_endpoint
from deploy.controlplane.store import Store
from tests.processes import Server, free_port
from tests.waiting import LIMIT_S, until

# the address at which the server in this process claims to be
BASE = "http://controlplane:8008"

_PROGRAM = (
    "import sys; from pathlib import Path; sys.path.insert(0, sys.argv[3]);"
    "from deploy.controlplane import ControlPlaneSettings, run;"
    "sys.exit(run(ControlPlaneSettings(state_dir=Path(sys.argv[1]), port=int(sys.argv[2]))))"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunningControlPlane:
    """A started control plane, with everything a client needs to reach it."""

    url: str
    state_dir: Path
    process: "subprocess.Popen[bytes]"

    @property
    def credentials(self) -> Credentials:
        """The generated keys."""
        return Credentials.load(self.state_dir)

    def call(self, name: str, /, **body: Any) -> dict[str, Any]:
        """The data that one call answers, made with the access keys.

        Raises:
            urllib.error.HTTPError: it was refused.
        """
        data: dict[str, Any] = json.loads(self._send(f"{self.url}/{name}", json.dumps(body).encode()))["data"]
        return data

    def download(self, uri: str) -> bytes:
        """The bytes at an address on this server, quoted or not."""
        return self._send(urllib.parse.quote(uri, safe=":/%"), None)

    def _send(self, url: str, body: bytes | None) -> bytes:
        keys = self.credentials
        basic = base64.b64encode(f"{keys.access_key}:{keys.secret_key}".encode()).decode()
        request = urllib.request.Request(
            url, data=body, headers={"Authorization": f"Basic {basic}", "Content-Type": "application/json"}
        )
        with urllib.request.urlopen(request, timeout=LIMIT_S) as answer:
            content: bytes = answer.read()
        return content

    def client_environment(self, base: Mapping[str, str], private_dir: Path) -> dict[str, str]:
        """`base` (e.g. `os.environ`) for a client of this server that must not see the user's own configuration."""
        inherited = {key: value for key, value in base.items() if not key.startswith(("CLEARML_", "TRAINS_"))}
        return {
            **inherited,
            **environment(self.credentials, self.url),
            "HOME": str(private_dir),
            "CLEARML_CONFIG_FILE": str(private_dir / "none.conf"),
            "CLEARML_CACHE_DIR": str(private_dir / "cache"),
        }


@contextmanager
def control_plane(state_dir: Path, *, port: int = 0) -> Iterator[RunningControlPlane]:
    """A started control plane on a port, 0 takes a free one; stopped when the block ends, killed if it does not stop.

    No connection is given that port, so that it can be started there again. Its state folder is made when missing.
    Raises RuntimeError with the end of its log if it did not start.
    """
    root = Path(__file__).resolve().parents[1]
    argv = [sys.executable, "-c", _PROGRAM, str(state_dir), str(port or free_port()), str(root)]
    server = Server("control plane", argv, env=os.environ, log=state_dir.with_name(f"{state_dir.name}.log"))
    try:

        def told() -> dict[str, str] | None:
            if not server.is_running():
                raise RuntimeError(f"the control plane did not start: {server.last_lines()}")
            found = read_endpoint(state_dir)
            return found if found is not None and found["pid"] == str(server.pid) else None

        endpoint = until(told, pause=0.02, what="the control plane's start")
        yield RunningControlPlane(url=endpoint["api"], state_dir=state_dir, process=server.process)
    finally:
        server.stop()


class InProcess:
    """A control plane without a process or a port, with a client that is logged in."""

    def __init__(self, http: TestClient, store: Store, credentials: Credentials) -> None:
        self.http = http
        self.store = store
        self.keys = (credentials.access_key, credentials.secret_key)
        self.token = self.login()

    def login(self) -> str:
        """A new token, i.e. another client."""
        token: str = self.http.get("/auth.login", auth=self.keys).json()["data"]["token"]
        return token

    @property
    def bearer(self) -> dict[str, str]:
        """The header of an authorised request."""
        return {"Authorization": f"Bearer {self.token}"}

    def send(self, name: str, /, *, method: str = "POST", **body: Any) -> tuple[int, int, dict[str, Any]]:
        """(status, subcode, data) of one call."""
        answer = self.http.request(method, f"/v2.23/{name}", content=json.dumps(body), headers=self.bearer)
        meta = answer.json()["meta"]
        if answer.status_code != meta["result_code"]:
            raise AssertionError(f"{name}: status {answer.status_code}, result code {meta['result_code']}")
        return answer.status_code, meta["result_subcode"], answer.json()["data"]

    def call(self, name: str, /, **body: Any) -> dict[str, Any]:
        """The data of a call that succeeds."""
        status, subcode, data = self.send(name, **body)
        if (status, subcode) != (200, 0):
            raise AssertionError(f"{name}: {status}/{subcode}")
        return data

    def refused(self, name: str, /, **body: Any) -> tuple[int, int]:
        """Status and subcode of a call that must be refused."""
        status, subcode, data = self.send(name, **body)
        if data:
            raise AssertionError(f"{name}: a refused call answered {data}")
        return status, subcode

    def add_events(self, *events: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        """(subcode, data) of one batch of events."""
        lines = "\n".join(json.dumps(event) for event in events)
        headers = {**self.bearer, "Content-Type": "application/json-lines"}
        answer = self.http.request("GET", "/v2.23/events.add_batch", content=lines, headers=headers)
        return answer.json()["meta"]["result_subcode"], answer.json()["data"]

    def upload(self, path: str, content: bytes) -> None:
        """Store a file."""
        answer = self.http.post("/files", files={path: (path, content)}, headers=self.bearer)
        if answer.status_code != 200:
            raise AssertionError(f"upload of {path}: {answer.status_code} {answer.text}")

    def download(self, uri: str) -> bytes:
        """The bytes at an address of this server."""
        answer = self.http.get(uri.removeprefix(BASE), headers=self.bearer)
        if answer.status_code != 200 or int(answer.headers["content-length"]) != len(answer.content):
            raise AssertionError(f"download of {uri}: {answer.status_code}")
        content: bytes = answer.content
        return content

    def task(self, **fields: Any) -> str:
        """The id of a new Task."""
        created: str = self.call("tasks.create", **{"name": "a task", "type": "training", **fields})["id"]
        return created

    def model(self, uri: str, **fields: Any) -> str:
        """The id of a new model."""
        created: str = self.call("models.create", **{"name": "a model", "uri": uri, **fields})["id"]
        return created

    def get(self, task: str) -> dict[str, Any]:
        """A Task."""
        found: dict[str, Any] = self.call("tasks.get_by_id", task=task)["task"]
        return found

    def get_model(self, model: str) -> dict[str, Any]:
        """A model."""
        found: dict[str, Any] = self.call("models.get_by_id", model=model)["model"]
        return found


@contextmanager
def in_process(state_dir: Path) -> Iterator[InProcess]:
    """A control plane in this process, and a client of it, for the length of the block."""
    credentials = Credentials.load_or_create(state_dir)
    store = Store(state_dir / "db")
    app = build(state_dir=state_dir, store=store, credentials=credentials)
    with TestClient(app, base_url=BASE) as http:
        yield InProcess(http, store, credentials)
    store.close()

"""Models in object storage, S3's, Azure's and Google's, by servers that speak their protocols: uploaded by the
unmodified SDK, fetched, refused, slow, cut off, away.

versitygw and fake-gcs-server (Go modules, ``tests/cluster/programs.py``) and Azurite (npm) are installed once and kept
outside the repository, and toxiproxy stands before each. The SDK asks Azure at its own addresses over TLS; a proxy of
this test leads them to Azurite (``HTTPS_PROXY``), with a certificate that the test trusts. It asks Google where
``STORAGE_EMULATOR_HOST`` says, without keys: that server knows none, nor what the SDK asks before it uploads, whether
it may, which this test answers. Not collected by default
because that takes minutes: ``.ci/run clients``.
"""

from __future__ import annotations

import base64
import json
import os
import shutil
import socket
import subprocess
import threading
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from socketserver import StreamRequestHandler, ThreadingTCPServer
from typing import Any, Final

import pytest
import trustme

from deploy.tools import ports
from tests.cluster import programs
from tests.control_planes import control_plane
from tests.processes import Server, free_ports
from tests.stock import Client
from tests.waiting import LIMIT_S, until

pytestmark = pytest.mark.integration

HERE = Path(__file__).parent
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
REGISTER = """
import sys
from pathlib import Path
from gateway.registry import ClearMLRegistry, Upload
task, folder = sys.argv[1:]
print("MODEL", ClearMLRegistry(task).register(Upload(Path(folder), "store", "ours", "ONNX")))
"""
AZURITE: Final = "3.37.0"
ACCOUNT, HOST = "models", "models.blob.core.windows.net"
S3_KEY, S3_SECRET = "storekey", "storesecret123"
KEY, ANOTHER = (base64.b64encode(letter * 64).decode() for letter in (b"k", b"x"))
CONTAINER: Final = """
import sys
from azure.storage.blob import BlobServiceClient
account, key, host = sys.argv[1:]
BlobServiceClient(f"https://{host}", {"account_name": account, "account_key": key}).create_container("bundles")
"""


_MAY: Final = json.dumps({"permissions": ["storage.objects.get", "storage.objects.update"]}).encode()
MAY: Final = (
    b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\nconnection: close\r\n"
    b"content-length: %d\r\n\r\n%s" % (len(_MAY), _MAY)
)


@dataclass
class Cloud:
    """A store, the proxy in front of it, a registry with one model in it, and what reads it."""

    client: Client
    admin: str
    model: str

    def ask(self, path: str, body: dict[str, Any]) -> None:
        """Tell the proxy something."""
        request = urllib.request.Request(f"{self.admin}{path}", json.dumps(body).encode(), method="POST")
        urllib.request.urlopen(request, timeout=LIMIT_S).close()

    def fetch(self, how: str, cache: str, **environ: str) -> dict[str, Any]:
        """Fetch the model in a process of its own."""
        place = str(self.client.folder / cache)
        printed = self.client.run(str(HERE / "fetch.py"), how, self.client.task, self.model, place, **environ)
        answer: dict[str, Any] = json.loads(printed.splitlines()[-1])
        return answer

    def left(self, cache: str) -> list[str]:
        """What lies in a cache, its locks aside."""
        return [path.name for path in (self.client.folder / cache / "models").iterdir() if path.suffix != ".lock"]


def azurite() -> list[str]:
    """Return Azurite's command, installed if it is not there."""
    npm, node = shutil.which("npm"), shutil.which("node")
    if npm is None or node is None:
        raise RuntimeError("npm and node are not on PATH (Debian: apt install npm)")
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "triton-gateway" / f"azurite-{AZURITE}"
    main = cache / "node_modules" / "azurite" / "dist" / "src" / "blob" / "main.js"
    if not main.is_file():
        cache.mkdir(parents=True, exist_ok=True)
        subprocess.run(
            [npm, "install", "--silent", "--ignore-scripts", "--no-audit", "--no-fund", "--prefix", str(cache),
             f"azurite@{AZURITE}"], check=True, timeout=600,
        )  # fmt: skip
    return [node, str(main)]


@contextmanager
def leading_to(port: int) -> Iterator[str]:
    """Lead every connection to one port of this machine, also as an HTTPS proxy; yields where it listens."""

    class Handler(StreamRequestHandler):
        def handle(self) -> None:
            first = self.rfile.readline()
            is_proxied, is_answered = first.startswith(b"CONNECT"), b"/iam/testPermissions" in first
            while (is_proxied or is_answered) and self.rfile.readline().strip():
                pass
            if is_answered:
                self.wfile.write(MAY)
                return
            with suppress(OSError), socket.create_connection(("127.0.0.1", port)) as there:
                if is_proxied:
                    self.wfile.write(b"HTTP/1.1 200 OK\r\n\r\n")
                else:
                    there.sendall(first)
                back = threading.Thread(target=pump, args=(there.recv, self.connection))
                back.start()
                pump(self.rfile.read1, there)
                back.join()

    with ThreadingTCPServer(("127.0.0.1", 0), Handler) as server:
        server.daemon_threads = True
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}"
        finally:
            server.shutdown()
            thread.join()


def pump(read: Callable[[int], bytes], to: socket.socket) -> None:
    """Pass bytes on until one side has no more; the other is told."""
    try:
        while some := read(1 << 16):
            to.sendall(some)
        to.shutdown(socket.SHUT_WR)
    except OSError:
        pass


def s3_conf(path: Path, secret: str, *ports: int) -> dict[str, str]:
    """Variables with a ``clearml.conf`` for stores at these ports; the keys of the API come from variables, too."""
    keys = f'key: "{S3_KEY}", secret: "{secret}", multipart: false, secure: false'
    each = ", ".join(f'{{ host: "127.0.0.1:{port}", {keys} }}' for port in ports)
    path.write_text(f"sdk {{ aws {{ s3 {{ credentials: [{each}] }} }} }}\n")
    return {"CLEARML_CONFIG_FILE": str(path)}


def s3(folder: Path, port: int, proxied: int, _stack: ExitStack) -> tuple[list[str], dict[str, str], str]:
    """versitygw at a port, with one bucket. Models are uploaded there and fetched through the proxy."""
    (folder / "data" / "bucket").mkdir(parents=True)
    program = str(programs.paths("versitygw")["versitygw"])
    command = [program, "--port", f"127.0.0.1:{port}", "--access", S3_KEY, "--secret", S3_SECRET, "posix", "--nometa",
               str(folder / "data")]  # fmt: skip
    direct = f"s3://127.0.0.1:{port}"
    told = {"TRITON_GATEWAY_FILES_REWRITE": f"{direct}=s3://127.0.0.1:{proxied}"}
    s3_conf(folder / "refused.conf", "another", proxied)
    return command, told | s3_conf(folder / "s3.conf", S3_SECRET, port, proxied), f"{direct}/bucket"


def azure(folder: Path, port: int, proxied: int, stack: ExitStack) -> tuple[list[str], dict[str, str], str]:
    """Azurite at a port: its command, what a client is told, and where models go."""
    authority = trustme.CA()
    certificate = authority.issue_cert(HOST)
    authority.cert_pem.write_to_path(folder / "ca.pem")
    certificate.private_key_pem.write_to_path(folder / "key.pem")
    certificate.cert_chain_pems[0].write_to_path(folder / "cert.pem")
    command = [
        *azurite(), "--blobHost", "127.0.0.1", "--blobPort", str(port), "--location", str(folder / "data"),
        "--cert", str(folder / "cert.pem"), "--key", str(folder / "key.pem"), "--silent", "--disableTelemetry",
        "--skipApiVersionCheck",
    ]  # fmt: skip
    told = {
        "AZURE_STORAGE_ACCOUNT": ACCOUNT, "AZURE_STORAGE_KEY": KEY, "REQUESTS_CA_BUNDLE": str(folder / "ca.pem"),
        "HTTPS_PROXY": stack.enter_context(leading_to(proxied)),
        "AZURITE_ACCOUNTS": f"{ACCOUNT}:{KEY}",
    }  # fmt: skip
    return command, told, f"azure://{HOST}/bundles"


def google(folder: Path, port: int, proxied: int, stack: ExitStack) -> tuple[list[str], dict[str, str], str]:
    """fake-gcs-server at a port, with one bucket."""
    (folder / "data" / "bucket").mkdir(parents=True)
    program = programs.paths("fake-gcs-server")["fake-gcs-server"]
    address = stack.enter_context(leading_to(proxied))
    command = [
        str(program), "-scheme", "http", "-host", "127.0.0.1", "-port", str(port), "-backend", "memory",
        "-data", str(folder / "data"), "-public-host", address.removeprefix("http://"), "-external-url", address,
    ]  # fmt: skip
    return command, {"STORAGE_EMULATOR_HOST": address}, "gs://bucket"


@pytest.fixture(scope="module", params=[s3, azure, google], ids=["s3", "azure", "gs"])
def cloud(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cloud]:
    """Everything, with one folder uploaded by the SDK."""
    folder = tmp_path_factory.mktemp("cloud")
    bundle = folder / "bundle"
    bundle.mkdir()
    for name, content in FILES.items():
        (bundle / name).write_bytes(content)
    port, admin, proxied = free_ports(3)
    toxiproxy = programs.paths("toxiproxy")["toxiproxy-server"]
    with ExitStack() as stack:
        command, told, where = request.param(folder, port, proxied, stack)
        client = Client(stack.enter_context(control_plane(folder / "state")), folder, **told)
        for name, each in (("store", command), ("proxy", [str(toxiproxy), "-host", "127.0.0.1", "-port", str(admin)])):
            stack.enter_context(Server(name, each, env=client.environment, log=folder / f"{name}.log"))
        for one in (port, admin):
            until(lambda one=one: not ports.is_free("127.0.0.1", one))
        found = Cloud(client, f"http://127.0.0.1:{admin}", "")
        listening = {"listen": f"127.0.0.1:{proxied}", "upstream": f"127.0.0.1:{port}", "enabled": True}
        found.ask("/proxies", {"name": "store", **listening})
        if request.param is azure:
            client.run("-c", CONTAINER, ACCOUNT, KEY, HOST)
        client.create("store")
        found.model = client.run("-c", UPLOAD, "one", str(bundle), where).split("MODEL ")[1].split()[0]
        client.environment["CLEARML_DEFAULT_OUTPUT_URI"] = where
        yield found


def sizes(*names: str) -> dict[str, int]:
    """Of these files of the model, or of all."""
    return {name: len(FILES[name]) for name in names or FILES}


@pytest.fixture(autouse=True)
def undisturbed(cloud: Cloud) -> Iterator[None]:
    """Every test ends with a store that answers."""
    yield
    cloud.ask("/reset", {})


def test_the_whole_model_is_fetched(cloud: Cloud) -> None:
    """What the unmodified SDK has put there: of these stores nothing is read in parts."""
    for how in ("parts", "whole"):
        assert sizes() == cloud.fetch(how, how)["files"]


def test_what_we_upload_is_there(cloud: Cloud) -> None:
    """Where the SDK's configuration says; the same files are no second model."""
    bundle = str(cloud.client.folder / "bundle")
    first, again = (
        cloud.client.run("-c", REGISTER, cloud.client.task, bundle).split("MODEL ")[1].split()[0] for _ in range(2)
    )
    assert first == again
    assert sizes() == replace(cloud, model=first).fetch("whole", "ours")["files"]


def test_a_slow_store_is_waited_for(cloud: Cloud) -> None:
    """4 MB at 400 KB/s. The log says how far it is."""
    toxic = {"name": "slow", "type": "bandwidth", "stream": "downstream", "attributes": {"rate": 400}}
    cloud.ask("/proxies/store/toxics", toxic)
    answer = cloud.fetch("whole", "slow")
    assert sizes() == answer["files"]
    assert any("downloading " in line and "MB" in line for line in answer["log"]), answer["log"]


def test_a_connection_that_is_cut_leaves_nothing_or_the_whole(cloud: Cloud) -> None:
    """Some SDKs go on where they were cut; what came until then is never taken for the whole."""
    toxic = {"name": "cut", "type": "limit_data", "stream": "downstream", "attributes": {"bytes": 1_500_000}}
    cloud.ask("/proxies/store/toxics", toxic)
    answer = cloud.fetch("whole", "cut")
    if "error" in answer:
        assert "RegistryUnavailable" == answer["error"], answer["message"]
        assert [] == cloud.left("cut")
    else:
        assert sizes() == answer["files"]
    cloud.ask("/reset", {})
    assert sizes() == cloud.fetch("whole", "cut")["files"]


def test_a_store_that_is_away_leaves_nothing_and_the_next_attempt_has_it(cloud: Cloud) -> None:
    """What was fetched before is served meanwhile; who has nothing is told so."""
    before = cloud.fetch("whole", "away")
    cloud.ask("/proxies/store", {"enabled": False})
    again = cloud.fetch("whole", "away")
    assert (before["files"], 0) == (again["files"], again["fetched"])
    answer = cloud.fetch("whole", "new")
    assert "RegistryUnavailable" == answer["error"]
    assert [] == cloud.left("new")
    cloud.ask("/reset", {})
    assert sizes() == cloud.fetch("whole", "new")["files"]


@pytest.mark.parametrize("cloud", [s3, azure], ids=["s3", "azure"], indirect=True)
def test_keys_that_are_refused_are_told(cloud: Cloud) -> None:
    """With what to look at; the SDK's own line has the reason."""
    other = {"AZURE_STORAGE_KEY": ANOTHER, "CLEARML_CONFIG_FILE": str(cloud.client.folder / "refused.conf")}
    answer = cloud.fetch("whole", "refused", **other)
    assert "RegistryUnavailable" == answer["error"], answer["message"]
    assert "clearml.conf" in answer["hint"]

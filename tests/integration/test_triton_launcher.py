"""The real tritonserver as we start it: who may load models, and that nothing is left of a killed one."""

from __future__ import annotations

import base64
import contextlib
import json
import os
import signal
import urllib.error
import urllib.request
from pathlib import Path

import psutil
import pytest
import tritonclient.grpc as triton

from deploy.sync.client import AdminClient
from deploy.sync.model_folder.execution import Tuning
from deploy.sync.open_addresses import open_addresses
from deploy.sync.repository import ModelRepository
from deploy.sync.stubs import stubs_of
from deploy.tritonserver.key import ensure_key, hide
from gateway.errors import BackendRefused
from tests.integration.conftest import place
from tests.triton_server import TritonServer
from tests.waiting import LIMIT_S, until

pytestmark = pytest.mark.integration


def members(group: int) -> list[int]:
    """The living processes of a process group."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, ProcessLookupError):
            if os.getpgid(process.pid) == group and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process.pid)
    return found


def regions(prefix):
    """Shared memory of one server."""
    return [p.name for p in Path("/dev/shm").glob(f"{prefix}*")]


@pytest.fixture
def repository(tmp_path, make_token_model):
    """A repository with one model of two instances, named ``tokens``, in a folder with a space and an umlaut."""
    make_token_model(tmp_path / "cache" / "model.onnx")
    repository = ModelRepository(tmp_path / "the stäte" / "models")
    repository.open()
    place(repository, "tokens", tmp_path / "cache", tuning=Tuning(instances=2))
    yield repository
    repository.close()


def test_a_killed_server_leaves_nothing_to_the_next(tmp_path, repository):
    """Kill -9: its stubs and shared memory are gone once another one is started on the same ports."""
    folder = tmp_path / "the stäte"
    with (
        TritonServer(folder, repository.root) as first,
        contextlib.closing(AdminClient(first.grpc, load_timeout_s=LIMIT_S)) as admin,
    ):
        admin.load("tokens")
        assert (3, 2) == (len(members(first.pid)), len(stubs_of(repository.root)["tokens"]))
        prefix = (folder / "triton" / "shm-prefix").read_text()
        assert regions(prefix)
        os.killpg(first.pid, signal.SIGKILL)
        until(lambda: not members(first.pid), what="the end of its processes")
        assert ({}, True) == (stubs_of(repository.root), bool(regions(prefix)))
        with TritonServer(folder, repository.root, ports=first.ports) as again:
            assert [] == regions(prefix)
            until(admin.is_live)
            assert "absent" == admin.index()["tokens"]
            admin.load("tokens")
            assert admin.is_ready("tokens")
    until(lambda: not members(again.pid), what="the end of its processes")
    assert ({}, []) == (stubs_of(repository.root), regions((folder / "triton" / "shm-prefix").read_text()))


def ask(address, path, body=b"", headers=None):
    """POST to Triton's HTTP port: the status."""
    request = urllib.request.Request(f"http://{address}{path}", data=body, headers=headers or {}, method="POST")
    try:
        with urllib.request.urlopen(request, timeout=LIMIT_S) as reply:
            return reply.status
    except urllib.error.HTTPError as error:
        return error.code


def test_only_who_has_the_key_may_load_models(tmp_path, repository):
    """A load that brings its own code, the index for a foreign page, trace files, shared memory: refused without."""
    file = tmp_path / "the stäte" / "triton" / "key"
    key = ensure_key(str(file), file.parent)
    server = TritonServer(tmp_path / "the stäte", repository.root, key=key)
    proof = tmp_path / "somebody-elses-code-ran"
    code = f"open({str(proof)!r}, 'w')\nclass TritonPythonModel:\n    def execute(self, requests):\n        return []\n"
    tensor = {"data_type": "TYPE_FP32", "dims": [1]}
    config = json.dumps({"name": "x", "backend": "python", "input": [{"name": "a", **tensor}],
                         "output": [{"name": "b", **tensor}]})  # fmt: skip
    body = {"parameters": {"config": config, "file:1/model.py": base64.b64encode(code.encode()).decode()}}
    stranger, owner = AdminClient(server.grpc), AdminClient(server.grpc, key_file=file)
    wrong = tmp_path / "wrong"
    wrong.write_text("not-the-key-of-this-triton")
    try:
        assert 403 == ask(server.http, "/v2/repository/models/x/load", json.dumps(body).encode())
        with triton.InferenceServerClient(server.grpc) as client, pytest.raises(Exception, match="restricted"):
            client.load_model("x", config=config, files={"file:1/model.py": code.encode()})
        assert 403 == ask(server.http, "/v2/repository/index", headers={"origin": "https://elsewhere.example"})
        for path in ("/v2/trace/setting", "/v2/logging", "/v2/systemsharedmemory/region/r/register"):
            assert 403 == ask(server.http, path, b"{}")
        with pytest.raises(BackendRefused, match="refuses its model-control API without a key") as refused:
            stranger.index()
        assert "TRITON_GATEWAY_TRITON_KEY_FILE" in refused.value.hint
        with pytest.raises(BackendRefused, match="with the key in"):
            AdminClient(server.grpc, key_file=wrong).load("tokens")
        assert not proof.exists()
        assert [] == open_addresses(server.grpc, server.http)
        # with it, all of that works; inference needs none
        owner.load("tokens")
        assert "ready" == owner.index()["tokens"]
        assert stranger.is_ready("tokens")
        assert 200 == ask(server.http, "/v2/repository/index", headers={"triton-gateway-key": key})
        rows = {"inputs": [{"name": n, "shape": [1, 1], "datatype": "INT64", "data": [1]}
                           for n in ("input_ids", "attention_mask")]}  # fmt: skip
        assert 200 == ask(server.http, "/v2/models/tokens/infer", json.dumps(rows).encode())
        assert hide(key, server.pid)
        assert key.encode() not in Path(f"/proc/{server.pid}/cmdline").read_bytes()
        assert key not in server.log.read_text()
    finally:
        stranger.close()
        owner.close()
        server.stop()


def test_an_open_triton_is_found_open(embedded_triton):
    """What `doctor` tries: both protocols let anybody in where there is no key."""
    assert [f"gRPC {embedded_triton.grpc}", f"HTTP {embedded_triton.http}"] == open_addresses(
        embedded_triton.grpc, embedded_triton.http
    )

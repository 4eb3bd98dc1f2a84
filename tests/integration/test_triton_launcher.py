"""The launcher with the real tritonserver: live, killed, stopped; and that nothing is ever left of it."""

from __future__ import annotations

import base64
import contextlib
import json
import os
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from pathlib import Path

import psutil
import pytest
import tritonclient.grpc as triton

from deploy.sync.client import AdminClient
from deploy.sync.model_folder.model_config import Tuning
from deploy.sync.open_addresses import open_addresses
from deploy.sync.repository import ModelRepository
from deploy.sync.stubs import count_stubs
from deploy.tritonserver.key import ensure_key
from deploy.tritonserver.launcher import (
    PathServer,
    Ports,
    TritonFailed,
    TritonLauncher,
    detect_server,
)
from gateway.errors import BackendRefused
from tests.integration.conftest import place
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


def test_a_killed_server_is_named_and_leaves_nothing(tmp_path, repository):
    """Kill -9: its stubs and shared memory are gone, and another one can be started on the same ports."""
    launcher = TritonLauncher(detect_server(), state_dir=tmp_path / "the stäte", repository=repository.root)
    addresses = launcher.start(timeout_s=LIMIT_S)
    admin = AdminClient(addresses.grpc, load_timeout_s=LIMIT_S)
    again = None
    try:
        admin.load("tokens")
        first = launcher.pid
        assert (3, {"tokens": 2}) == (len(members(first)), count_stubs(repository.root))
        prefix = (tmp_path / "the stäte" / "triton" / "shm-prefix").read_text()
        assert regions(prefix)
        os.kill(first, signal.SIGKILL)
        assert "tritonserver ended (killed by SIGKILL)" == until(lambda: launcher.ended)
        until(lambda: ([], []) == (members(first), regions(prefix)), what="the end of its processes")
        assert ({}, None) == (count_stubs(repository.root), launcher.pid)
        ports = Ports(*(int(address.rpartition(":")[2]) for address in (addresses.grpc, addresses.http)))
        again = TritonLauncher(
            detect_server(), state_dir=tmp_path / "the stäte", repository=repository.root, ports=ports
        )
        again.start(timeout_s=LIMIT_S)
        until(admin.is_live)
        assert "absent" == admin.index()["tokens"].state
        admin.load("tokens")
        assert admin.is_ready("tokens")
        last = again.pid
    finally:
        admin.close()
        launcher.stop()
        if again is not None:
            again.stop()
    until(lambda: not members(last), what="the end of its processes")
    assert ({}, None) == (count_stubs(repository.root), again.pid)


def test_a_stopped_server_can_be_started_again_warm_with_its_last_log_kept(tmp_path, repository):
    """Stop and start in the same state folder; the previous log is one file beside."""
    for _ in range(2):
        launcher = TritonLauncher(detect_server(), state_dir=tmp_path / "the stäte", repository=repository.root)
        launcher.start(timeout_s=LIMIT_S)
        launcher.stop()
    logs = tmp_path / "the stäte" / "logs"
    assert ["triton.log", "triton.log.1"] == sorted(p.name for p in logs.iterdir())
    assert "Started GRPCInferenceService at 127.0.0.1:" in (logs / "triton.log").read_text()


def test_a_server_that_cannot_start_says_what_its_log_says(tmp_path, repository):
    """An option it does not know: one line with the reason and where the log is."""
    launcher = TritonLauncher(
        detect_server(),
        state_dir=tmp_path / "the stäte",
        repository=repository.root,
        extra_arguments=["--no-such-option"],
    )
    with pytest.raises(TritonFailed, match=r"Triton exited while starting \(.*\): .*logs/triton\.log"):
        launcher.start()
    assert launcher.pid is None


def test_a_program_on_path_that_is_no_triton_is_refused(tmp_path, repository):
    """Whatever ends before it is live is told, not waited for."""
    program = tmp_path / "tritonserver"
    program.write_text("#!/bin/sh\necho 'error: this is not a server'\nexit 3\n")
    program.chmod(0o755)
    launcher = TritonLauncher(PathServer(program), state_dir=tmp_path / "the stäte", repository=repository.root)
    with pytest.raises(TritonFailed, match=r"exit code 3\): error: this is not a server"):
        launcher.start()


def test_the_server_dies_with_a_killed_launcher(tmp_path, repository):
    """Our own kill -9: the kernel ends the server, the stubs notice."""
    code = (
        "import sys, time, pathlib\n"
        "from deploy.tritonserver.launcher import *\n"
        "from deploy.sync.client import AdminClient\n"
        "state, models = map(pathlib.Path, sys.argv[1:])\n"
        "launcher = TritonLauncher(detect_server(), state_dir=state, repository=models)\n"
        "AdminClient(launcher.start(timeout_s=300).grpc).load('tokens')\n"
        "print(launcher.pid, flush=True)\n"
        "time.sleep(600)\n"
    )
    child = subprocess.Popen(
        [sys.executable, "-c", code, str(tmp_path / "the stäte"), str(repository.root)],
        stdout=subprocess.PIPE,
        text=True,
        cwd=Path(__file__).parents[2],
    )
    server = int(child.stdout.readline())
    assert 3 == len(members(server))
    child.kill()
    child.wait()
    child.stdout.close()
    until(lambda: not members(server))
    assert {} == count_stubs(repository.root)


def test_ctrl_c_of_the_terminal_does_not_reach_the_server(tmp_path, repository):
    """It has a session of its own: the launcher decides when and how it ends."""
    with TritonLauncher(detect_server(), state_dir=tmp_path / "the stäte", repository=repository.root) as launcher:
        assert launcher.pid == os.getsid(launcher.pid) != os.getsid(0)


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
    launcher = TritonLauncher(detect_server(), state_dir=tmp_path / "the stäte", repository=repository.root, key=key)
    addresses = launcher.start(timeout_s=LIMIT_S)
    proof = tmp_path / "somebody-elses-code-ran"
    code = f"open({str(proof)!r}, 'w')\nclass TritonPythonModel:\n    def execute(self, requests):\n        return []\n"
    tensor = {"data_type": "TYPE_FP32", "dims": [1]}
    config = json.dumps({"name": "x", "backend": "python", "input": [{"name": "a", **tensor}],
                         "output": [{"name": "b", **tensor}]})  # fmt: skip
    body = {"parameters": {"config": config, "file:1/model.py": base64.b64encode(code.encode()).decode()}}
    stranger, owner = AdminClient(addresses.grpc), AdminClient(addresses.grpc, key_file=file)
    wrong = tmp_path / "wrong"
    wrong.write_text("not-the-key-of-this-triton")
    try:
        assert 403 == ask(addresses.http, "/v2/repository/models/x/load", json.dumps(body).encode())
        with triton.InferenceServerClient(addresses.grpc) as client, pytest.raises(Exception, match="restricted"):
            client.load_model("x", config=config, files={"file:1/model.py": code.encode()})
        assert 403 == ask(addresses.http, "/v2/repository/index", headers={"origin": "https://elsewhere.example"})
        for path in ("/v2/trace/setting", "/v2/logging", "/v2/systemsharedmemory/region/r/register"):
            assert 403 == ask(addresses.http, path, b"{}")
        with pytest.raises(BackendRefused, match="refuses its model-control API without a key") as refused:
            stranger.index()
        assert "TRITON_GATEWAY_TRITON_KEY_FILE" in refused.value.hint
        with pytest.raises(BackendRefused, match="refuses the key in"):
            AdminClient(addresses.grpc, key_file=wrong).load("tokens")
        assert not proof.exists()
        assert [] == open_addresses(addresses.grpc, addresses.http)
        # with it, all of that works; inference needs none
        owner.load("tokens")
        assert "ready" == owner.index()["tokens"].state
        assert stranger.is_ready("tokens")
        assert 200 == ask(addresses.http, "/v2/repository/index", headers={"triton-gateway-key": key})
        rows = {"inputs": [{"name": n, "shape": [1, 1], "datatype": "INT64", "data": [1]}
                           for n in ("input_ids", "attention_mask")]}  # fmt: skip
        assert 200 == ask(addresses.http, "/v2/models/tokens/infer", json.dumps(rows).encode())
        assert key.encode() not in Path(f"/proc/{launcher.pid}/cmdline").read_bytes()
        assert key not in launcher.log_path.read_text()
    finally:
        stranger.close()
        owner.close()
        launcher.stop()


def test_a_load_starts_each_instance_once(tmp_path, embedded_triton):
    """No process more, that Triton would ask for what the configuration lacks and wait a second for its end."""
    starts = tmp_path / "starts"
    folder = embedded_triton.repository.root / "counted"
    (folder / "1").mkdir(parents=True)
    code = f"open({str(starts)!r}, 'a').write('one ')\nclass TritonPythonModel:\n    def execute(self, requests): ...\n"
    (folder / "1" / "model.py").write_text(code)
    tensor = '{ name: "x" data_type: TYPE_FP32 dims: [ 1 ] }'
    (folder / "config.pbtxt").write_text(
        f'backend: "python" input {tensor} output {tensor} instance_group {{ count: 2 kind: KIND_CPU }}'
    )
    embedded_triton.admin.load("counted")
    assert "one one " == starts.read_text()
    embedded_triton.withdraw("counted")


def test_an_open_triton_is_found_open(tmp_path, embedded_triton):
    """What `doctor` tries: both protocols let anybody in where there is no key."""
    assert [f"gRPC {embedded_triton.grpc}", f"HTTP {embedded_triton.http}"] == open_addresses(
        embedded_triton.grpc, embedded_triton.http
    )

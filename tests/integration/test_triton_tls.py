"""The real tritonserver with TLS: who gets through to it, by gRPC, and who does not.

It is started as the container of the CPU server starts it, with the arguments that the chart gives to every Triton.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import trustme

from deploy.cli.commands.doctor import triton_at
from deploy.sync.client import AdminClient
from gateway.errors import BackendRefused, BackendUnavailable
from gateway.triton.tls import TritonTls
from tests.processes import Server, free_port, free_ports
from tests.waiting import LIMIT_S, until

pytestmark = pytest.mark.integration

KEY = "the-key-of-this-triton-1234"


@dataclass
class Secured:
    """A Triton that asks for certificates of one authority, and the files of a client that has one."""

    grpc: str
    http: str
    key_file: Path
    folder: Path
    authority: trustme.CA

    def tls(self, name: str = "triton", folder: str = "client") -> TritonTls:
        """TLS with a client's files, and the name that it expects."""
        ca, certificate, key = (str(self.folder / folder / file) for file in ("ca.crt", "tls.crt", "tls.key"))
        return TritonTls(ca, certificate, key, name)

    def admin(self, tls: TritonTls | None) -> AdminClient:
        """A client of its control APIs."""
        return AdminClient(self.grpc, key_file=self.key_file, timeout_s=60.0, load_timeout_s=LIMIT_S, tls=tls)

    def environ(self) -> dict[str, str]:
        """The variables of model sync's container."""
        return {
            "TRITON_GATEWAY_TRITON_TLS": str(self.folder / "client"), "TRITON_GATEWAY_TRITON_TLS_NAME": "triton"
        }  # fmt: skip


def write(folder: Path, authority: trustme.CA, name: str) -> None:
    """Write certificate, key and authority as a Secret of type kubernetes.io/tls is mounted."""
    folder.mkdir(exist_ok=True)
    certificate = authority.issue_cert(name)
    certificate.private_key_pem.write_to_path(str(folder / "tls.key"))
    (folder / "tls.crt").write_bytes(b"".join(each.bytes() for each in certificate.cert_chain_pems))
    authority.cert_pem.write_to_path(str(folder / "ca.crt"))


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    """Mutual TLS, and a key: all that the chart can ask for."""
    folder = tmp_path_factory.mktemp("tls")
    authority = trustme.CA()
    write(folder / "server", authority, "triton")
    write(folder / "client", authority, "gateway")
    (folder / "key").write_text(KEY)
    (folder / "models").mkdir()
    grpc, http, metrics = free_ports(3)
    command = [
        sys.executable, "-m", "deploy.cli.main", "triton", "--state-dir", str(folder / "state"), "--repository",
        str(folder / "models"), "--key-file", str(folder / "key"), "--grpc-port", str(grpc), "--http-port", str(http),
        "--metrics-port", str(metrics), "--grpc-use-ssl-mutual=true",
        *(f"--grpc-{what}={folder}/server/{file}" for what, file in (
            ("server-cert", "tls.crt"), ("server-key", "tls.key"), ("root-cert", "ca.crt"),
        )),
    ]  # fmt: skip
    with Server("triton", command, env=os.environ, log=folder / "log") as server:
        server.wait_for(f"http://127.0.0.1:{http}/v2/health/live")
        yield Secured(f"127.0.0.1:{grpc}", f"127.0.0.1:{http}", folder / "key", folder, authority)
        server.stop()


def test_another_authority_another_name_no_certificate_and_no_tls_do_not_get_through(secured: Secured) -> None:
    """Model sync says that it was TLS, and what about it. (A gateway: tests/unit/gateway/triton/test_replicas.py.)"""
    owner = secured.admin(secured.tls())
    assert {} == owner.index()
    owner.close()
    others = trustme.CA()
    write(secured.folder / "stranger", others, "gateway")
    (secured.folder / "stranger" / "ca.crt").write_bytes(secured.authority.cert_pem.bytes())
    write(secured.folder / "distrusting", secured.authority, "gateway")
    others.cert_pem.write_to_path(str(secured.folder / "distrusting" / "ca.crt"))
    for tls in (
        secured.tls(folder="stranger"), secured.tls(folder="distrusting"), secured.tls(name="elsewhere"),
        TritonTls(secured.tls().authority, name="triton"),
    ):  # fmt: skip
        admin = secured.admin(tls)
        assert not admin.is_live()
        with pytest.raises(BackendUnavailable, match=r"with TLS \(TRITON_GATEWAY_TRITON_TLS\)"):
            admin.index()
        admin.close()
    plain = secured.admin(None)
    with pytest.raises(BackendUnavailable, match="no Triton answers"):
        plain.index()
    plain.close()
    missing = secured.admin(secured.tls(folder="nowhere"))
    assert not missing.is_live()
    with pytest.raises(BackendRefused, match=r"no TLS to Triton.*nowhere"):
        missing.index()
    missing.close()


def test_doctor_looks_through_tls(secured: Secured) -> None:
    """It answers, and nobody loads models without the key."""
    found = {each.subject: each for each in triton_at(
        secured.grpc, http=secured.http.rpartition(":")[2], key_file=secured.key_file, tls=secured.tls()
    )}  # fmt: skip
    assert ["ok", "ok"] == [found[name].state for name in (f"Triton at {secured.grpc}", "who may load models")]


def test_model_sync_takes_tls_from_its_variables(secured: Secured, tmp_path: Path) -> None:
    """Those that gateways have. It sees its Triton although no registry answers."""
    port = free_port()
    environ = os.environ | secured.environ() | {
        "TRITON_GATEWAY_TRITON_KEY_FILE": str(secured.key_file), "CLEARML_API_HOST": "http://127.0.0.1:9",
        "CLEARML_API_ACCESS_KEY": "a", "CLEARML_API_SECRET_KEY": "b",
    }  # fmt: skip
    command = [
        sys.executable, "-m", "deploy.cli.main", "sync", "--state-dir", str(tmp_path), "--repository",
        str(tmp_path / "models"), "--triton-grpc", secured.grpc, "--health-port", str(port), "--poll-frequency", "1s",
    ]  # fmt: skip
    with Server("sync", command, env=environ, log=tmp_path / "log") as server:

        def answers() -> bool:
            return bool(json.loads(server.wait_for(f"http://127.0.0.1:{port}/status"))["triton"]["answers"])

        until(answers, what="an answer of Triton to model sync")

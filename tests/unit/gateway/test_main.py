"""Checks and preparations before workers start. An error is one line on stderr without a traceback."""

from __future__ import annotations

import socket
import sys
from pathlib import Path
from typing import Any

import pytest

from gateway.__main__ import main, run
from gateway.settings import Settings
from tests.unit.gateway.callers.test_keys import written_file

JWT = {"jwt_issuer": "https://i", "jwt_audience": "g"}
KEYS = {"keys_file": "FOLDER/keys"}
STORE = "no address of a store"


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({**JWT, "jwt_keys": "FOLDER/none"}, "cannot be read from FOLDER/none"),
        ({**JWT, "jwt_keys": "FOLDER/bad"}, "read from FOLDER/bad"),
        ({**JWT, "jwt_keys": "file:///bad"}, "TRITON_GATEWAY_JWT_KEYS"),
        ({"jwt_issuer": "login.example", "jwt_audience": "g"}, "TRITON_GATEWAY_JWT_ISSUER"),
        ({"jwt_audience": "g"}, "TRITON_GATEWAY_JWT_AUDIENCE does nothing without TRITON_GATEWAY_JWT_ISSUER"),
        ({"jwt_claims": "tenant=org"}, "TRITON_GATEWAY_JWT_CLAIMS does nothing"),
        ({"tls_client_authority": "FOLDER/bad"}, "TRITON_GATEWAY_TLS_CLIENT_AUTHORITY does nothing without"),
        ({"tls": "FOLDER/none"}, "FOLDER/none/tls.crt"),
        ({"tls": "FOLDER"}, "TRITON_GATEWAY_TLS is no folder with"),
        ({"keys_file": "FOLDER/none"}, "FOLDER/none"),
        ({"keys_file": "FOLDER/bad"}, "FOLDER/bad"),
        ({**JWT, "jwt_keys": ""}, "JWT_KEYS are needed"), ({**JWT, "jwt_keys": "ftp://h/jwks"}, "not an https address"),
        ({**JWT, "jwt_keys": "https://h/k", "jwt_claims": "tenat=org"}, "JWT_CLAIMS must"),
        *(({**KEYS, "quota_store": address}, said) for address, said in (
            ("redis://:hunter2@h/0", "PASSWORD_FILE"), ("redis://u:hunter2@h:x/0", STORE),
            ("memcached://h/hunter2", STORE), ("redis:///0", STORE), ("redis://h?password=hunter2", STORE),
        )),
        ({**KEYS, "quota_store": "redis://h", "quota_store_password_file": "FOLDER/none"}, "none cannot be read"),
    ],
)  # fmt: skip
def test_access_settings_are_checked_before_anything_listens(
    fields: dict[str, Any], named: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Local files and invalid addresses, without passwords. An issuer may be unreachable for a moment."""
    for name in ("bad", "tls.crt", "tls.key"):
        (tmp_path / name).write_text("{")
    (tmp_path / "keys").write_bytes(written_file())
    placed = {name: value.replace("FOLDER", str(tmp_path)) if isinstance(value, str) else value
              for name, value in fields.items()}  # fmt: skip
    assert 2 == run(Settings(port=0, state_dir=tmp_path / "state", **placed))
    error = capsys.readouterr().err
    assert named.replace("FOLDER", str(tmp_path)) in error
    assert "hunter2" not in error
    assert 1 == error.count("\n")


@pytest.mark.parametrize(
    ("host", "fields", "starts"),
    [
        ("127.0.0.1", {}, True), ("127.8.8.8", {}, True), ("::1", {}, True), ("localhost", {}, True),
        ("0.0.0.0", {}, False), ("::", {}, False), ("10.1.2.3", {}, False), ("gateway.example", {}, False),
        ("", {}, False), ("0.0.0.0", {"allow_anonymous": True}, True), ("0.0.0.0", {"keys_file": "k"}, True),
        ("0.0.0.0", {"jwt_issuer": "i"}, True), ("0.0.0.0", {"tls_client_authority": "a"}, True),
    ],
)  # fmt: skip
def test_listening_beyond_loopback_requires_access_settings(
    host: str, fields: dict[str, Any], starts: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Loopback needs none. Elsewhere a new process refuses to start, and an old one keeps serving."""
    settings = Settings(host=host, state_dir=tmp_path, **fields)
    assert starts is not settings.answers_strangers
    if not starts:
        assert 2 == run(settings)
        error = capsys.readouterr().err
        assert "TRITON_GATEWAY_KEYS_FILE" in error
        assert "TRITON_GATEWAY_ALLOW_ANONYMOUS=true" in error
        assert 1 == error.count("\n")


@pytest.mark.parametrize("name", ["port", "grpc_port"])
def test_a_port_in_use_is_one_line_with_a_hint(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:  # fmt: skip
    """It names the port and the variable for another one."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        assert 1 == run(Settings(**{"port": 0, name: port}, state_dir=tmp_path))
    (line,) = capsys.readouterr().err.splitlines()
    assert f"port {port} on 127.0.0.1 is taken; choose another with TRITON_GATEWAY_{name.upper()}" in line


def test_an_invalid_value_is_one_line_with_its_variable(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A typing error in the environment, or a collector without the extra that sends spans."""
    monkeypatch.setitem(sys.modules, "opentelemetry.sdk.trace", None)
    for variable, value, said in (
        ("TRITON_GATEWAY_PORT", "99999", "65535"), ("TRITON_GATEWAY_REPLICAS", "-1", "TRITON_GATEWAY_REPLICAS: "),
        ("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:9", 'pip install ".[otel]"'),
    ):  # fmt: skip
        with monkeypatch.context() as patch:
            patch.setenv("TRITON_GATEWAY_PORT", "0")
            patch.setenv(variable, value)
            assert 2 == main()
        (line,) = capsys.readouterr().err.splitlines()
        assert said in line

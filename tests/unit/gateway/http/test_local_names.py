"""A gateway that `up` started answers only to names of this machine: a web page may have its own name resolve here."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from gateway.app import create_app
from gateway.local_names import are_local
from tests.unit.gateway.http.serving import GOOD, serving

_LOCAL = (
    "localhost", "LocalHost:8080", "localhost.", "127.0.0.1:80", "127.8.8.8", "[::1]:8080", "[::1]", "me.localhost:1",
    "laptop:8080", "LAPTOP",
)  # fmt: skip
_FOREIGN = (
    "evil.example", "evil.example:8080", "localhost.evil.example", "127.0.0.1.evil.example", "10.0.0.1", "0.0.0.0",
    "[2001:db8::1]:80", "xlocalhost", "laptop.evil.example",
    "@localhost", "localhost@evil.example", "evil.example:localhost",
)  # fmt: skip
_PATHS = ("/", "/docs", "/openapi.json", "/v1/status", "/metrics", "/v2/models/e", "/v1/models", "/readyz")


def _request(host: str, path: str = "/serve/e", body: bytes = GOOD) -> bytes:
    head = f"host: {host}\r\ncontent-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
    return f"{'POST' if body else 'GET'} {path} HTTP/1.1\r\n{head}".encode() + body


async def test_requests_for_other_names_are_refused_everywhere(make_stack: Any) -> None:
    """Inference in every form, and all pages. Local names are answered."""
    stack = make_stack()
    stack.gateway = stack.new_gateway(local_names=["laptop"])
    async with stack.gateway.running(), serving(stack) as port:
        stack.deploy("e")
        await stack.served("e")
        wire = await port.connect()
        assert 200 == (await wire.ask(_request("laptop:8080")))[0]
        for path in ("/serve/e", "/v1/embeddings", "/v2/models/e/infer", "/v1/feedback", *_PATHS):
            wire.send(_request("evil.example", path, b"" if path in _PATHS else GOOD))
            status, headers = await wire.head()
            assert (403, "foreign_host") == (status, headers["x-refused-because"]), path
            await wire._reader.readexactly(int(headers["content-length"]))
        wire.send(b"GET /readyz HTTP/1.0\r\n\r\n")  # no browser
        assert 200 == (await wire.head())[0]


@given(st.text(max_size=40))
@example("")
def test_names_of_this_machine_pass_and_no_others(text: str) -> None:
    """With a port or without one, in any case, whatever stands in front of another; a second name does not help."""
    foreign = (*_FOREIGN, f"{text}.evil.example", f"localhost{text}.evil.example", f"[::1{text}].evil.example")
    assert [] == [host for host in _LOCAL if not are_local([(b"host", host.encode())], ("laptop",))]
    assert [] == [host for host in foreign if are_local([(b"host", host.encode("utf-8", "replace"))], ("laptop",))]
    assert not are_local([(b"host", b"localhost"), (b"host", b"evil.example")], ("laptop",))


@pytest.mark.parametrize(
    ("setting", "value", "is_local"),
    [("PORT", "8080", True), ("ALLOW_ANONYMOUS", "true", False), ("KEYS_FILE", "keys.json", False),
     ("LOCAL_NAMES", None, False)],
)  # fmt: skip
def test_a_gateway_behind_a_proxy_answers_to_every_name(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Any, setting: str, value: str | None, is_local: bool
) -> None:
    """One that says so, one whose callers have keys, and one that `up` did not start."""
    found = {"STATE_DIR": str(tmp_path), "LOCAL_NAMES": "Laptop", "LOG_FORMAT": "text", setting: value}
    monkeypatch.setenv("CLEARML_SERVING_TASK_ID", "task")
    for name, text in found.items():
        if text is not None:
            monkeypatch.setenv(f"TRITON_GATEWAY_{name}", text)
    assert is_local != create_app()._gate.is_for_us([(b"host", b"evil.example")])

"""Every way in which a new version can be bad, on real servers: the version before it serves on, whatever restarts.

One stack for all of them: the embedded control plane, the real Triton with model sync, a gateway process. Each case has
an endpoint of its own that serves a good bundle and is then given a bad one, all at once, under requests that are never
repeated.
"""

from __future__ import annotations

import json
import resource
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

from tests.callers import Callers
from tests.integration.text_bundles import Api, code_bundle, packed, text_bundle, text_model
from tests.processes import free_port
from tests.stack import Small
from tests.waiting import until

pytestmark = [pytest.mark.integration, pytest.mark.long]


class HalfServer(BaseHTTPRequestHandler):
    """Promises whole files and sends half of them."""

    folder: Path

    def do_GET(self) -> None:
        content = (self.folder / self.path.lstrip("/")).read_bytes()
        self.send_response(200)
        self.send_header("content-length", str(len(content)))
        self.end_headers()
        self.wfile.write(content[: len(content) // 2])

    def log_message(self, *_: object) -> None:
        pass


def spoil(name: str, how: Callable[[Path], None], folder: Path) -> Path:
    """A text bundle with one thing wrong."""
    bundle = text_bundle(folder / name)
    how(bundle)
    return packed(bundle)


def _config(bundle: Path, **changes: Any) -> None:
    config = json.loads((bundle / "config.json").read_text())
    (bundle / "config.json").write_text(json.dumps({**config, **changes}))


def _samples(bundle: Path) -> None:
    sample = {"body": {"text": "good film"}, "answer": {"label": "BAD"}}
    (bundle / "warmup.json").write_text(json.dumps({"samples": [sample]}))


TEXT_CASES: dict[str, tuple[Callable[[Path], None], str]] = {
    "corrupt-onnx": (lambda b: (b / "model.onnx").write_bytes(b"\x08garbage" * 99), "model sync refuses"),
    "no-tokenizer": (lambda b: (b / "tokenizer.json").unlink(), "there is no tokenizer.json"),
    "small-vocabulary": (lambda b: _config(b, vocab_size=4), "the model's vocab_size is 4"),
    "small-embedding": (lambda b: text_model(b / "model.onnx", rows=4), "the highest token id of its tokenizer, 4"),
    "wrong-inputs": (lambda b: text_model(b / "model.onnx", inputs=("ids", "mask")), "takes the inputs ids, mask"),
    "unknown-operator": (
        lambda b: text_model(b / "model.onnx", operator="Nonsense"),
        "ONNX Runtime cannot load the model",
    ),
    "wrong-answers": (_samples, 'answer.label is "GOOD" instead of "BAD"'),
    "disk-full": (lambda b: (b / "padding.txt").write_bytes(np.random.default_rng(0).bytes(4 << 20)), "cannot store"),
}
CODE_CASES: dict[str, tuple[dict[str, str], str]] = {
    "raises-at-import": ({"at_import": "raise RuntimeError('broken import')"}, "broken import"),
    "raises-at-load": ({"at_load": "raise RuntimeError('broken load')"}, "broken load"),
    "raises-at-call": ({"at_call": "raise KeyError('broken call')"}, "broken call"),
    "hangs-at-load": ({"at_load": "threading.Event().wait()"}, "did not finish loading within 60 s"),
}


def answered_by(client: httpx.Client, url: str, name: str) -> str:
    """The model that gave an endpoint's good answer, or what happened instead."""
    try:
        reply = client.post(f"{url}/serve/{name}", json={"text": "good film"})
    except httpx.TransportError as error:
        return repr(error)
    if reply.status_code != 200 or reply.json()["label"] != "GOOD":
        return reply.text
    return reply.headers["x-model-id"]


@pytest.fixture
def stack(tmp_path: Path) -> Iterator[Small]:
    """A stack whose gateway gives up on code and models after a minute: good ones take long on a busy machine."""
    with Small(tmp_path / "stack", tritons=1, ready_timeout="60s") as made:
        yield made


def _limit_file_size(pid: int, most: int) -> None:
    resource.prlimit(pid, resource.RLIMIT_FSIZE, (most, resource.RLIM_INFINITY))


def test_a_bad_version_never_costs_the_one_before_it(stack: Small, tmp_path: Path) -> None:
    """Not its own endpoint, not another one, not after a restart of the gateway; and it is tried again."""
    api = Api(stack.client)
    HalfServer.folder = tmp_path
    half = ThreadingHTTPServer(("127.0.0.1", free_port()), HalfServer)
    threading.Thread(target=half.serve_forever, daemon=True).start()
    good_text = api.model(packed(text_bundle(tmp_path / "good-text")))
    good_code = api.model(packed(code_bundle(tmp_path / "good-code")))

    entry = {"version": "", "model_id": ""}
    good: dict[str, dict[str, Any]] = {}
    bad: dict[str, dict[str, Any]] = {}
    reasons: dict[str, str] = {}
    for name, (how, reason) in TEXT_CASES.items():
        good[name] = {**entry, "engine_type": "triton", "serving_url": name, "model_id": good_text}
        bad[name] = {**good[name], "model_id": api.model(spoil(name, how, tmp_path))}
        reasons[name] = reason
    for name, (lines, reason) in CODE_CASES.items():
        good[name] = {**entry, "engine_type": "custom", "serving_url": name, "model_id": good_code}
        bad[name] = {**good[name], "model_id": api.model(packed(code_bundle(tmp_path / name, **lines)))}
        reasons[name] = reason
    uri = f"http://127.0.0.1:{half.server_port}/good-text.zip"
    for name, model_id, reason in (
        ("truncated", api.model(tmp_path / "truncated.zip", uri=uri), "failed"),
        ("wrong-hash", api.model(tmp_path / "good-text.zip", sha256="0" * 64), "does not match its recorded hash"),
        ("not-registered", "f" * 32, "is not in the registry"),
    ):
        good[name] = {**entry, "engine_type": "triton", "serving_url": name, "model_id": good_text}
        bad[name], reasons[name] = {**good[name], "model_id": model_id}, reason
    good["neighbour"] = bad["neighbour"] = {
        **entry, "engine_type": "triton", "serving_url": "neighbour", "model_id": good_text,
    }  # fmt: skip
    expected = {name: fields["model_id"] for name, fields in good.items()}
    names = list(good)

    api.endpoints(good)
    stack.until(lambda s: set(good) == {e["url"] for e in s["endpoints"]}, "the good versions being served")

    def served() -> dict[str, str]:
        with httpx.Client() as client:
            return {name: answered_by(client, stack.url, name) for name in names}

    def wrong(number: int) -> str:
        """Each endpoint is asked in turn."""
        name = names[number % len(names)]
        found = answered_by(asking, stack.url, name)
        return "" if len(found) == 32 else f"{name}: {found}"

    def successors(status: Any) -> dict[str, dict[str, str]]:
        return {e["url"]: e["successor"] for e in status["endpoints"] if e["successor"]}

    def all_failed(status: Any) -> bool:
        # A busy Triton may still be loading when the first attempt ends: the next one has its reason.
        found = successors(status)
        return set(found) == set(reasons) and all(
            found[n]["state"] == "failed" and reason in found[n]["reason"] for n, reason in reasons.items()
        )

    assert expected == served()
    _limit_file_size(stack.gateway.process.pid, 2 << 20)
    with httpx.Client() as asking, Callers(wrong, threads=2, pause=0.001) as callers:
        api.endpoints(bad)
        stack.until(all_failed, "every bad version having failed for its reason")
        assert httpx.get(f"{stack.url}/v2/health/ready").status_code == 200
    assert [] == callers.failures
    assert callers.asked > len(names)
    assert expected == served()

    # Whoever restarts finds the versions before, and the same reasons.
    stack.restart_gateway()
    stack.until(
        lambda s: set(good) == {e["url"] for e in s["endpoints"]},
        "the versions before being served again",
    )
    # The new process has no limit on its files: its next version may begin to serve at any moment.
    now = served()
    assert expected | {"disk-full": now["disk-full"]} == now

    # What was wrong with the place and not with the bundle comes right by itself: the disk has room again.
    until(lambda: served()["disk-full"] == bad["disk-full"]["model_id"], pause=0.5)
    half.shutdown()
    half.server_close()

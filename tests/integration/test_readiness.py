"""Readiness on real servers: changes, broken endpoints and a moved Triton never take a serving gateway out.

The embedded control plane, the real Triton with model sync, a gateway process; `/readyz` is asked every 50 ms.
"""

from __future__ import annotations

import http.client
import json
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.integration import text_bundles
from tests.processes import ROOT
from tests.stack import Small
from tests.waiting import LIMIT_S, until

pytestmark = [pytest.mark.integration, pytest.mark.timeout(300)]


@pytest.fixture
def make_stack(tmp_path: Path) -> Iterator[Callable[..., Small]]:
    """Start stacks of one Triton; ``settings`` are the gateway's."""
    made: list[Small] = []

    def make(**settings: str) -> Small:
        made.append(Small(tmp_path / "stack", tritons=1, settings=settings))
        return made[-1]

    yield make
    for stack in made:
        stack.stop()


class Sampler:
    """Asks `/readyz` every 50 ms while it is open, and keeps every answer that was not 200."""

    def __init__(self, url: str) -> None:
        self._address = url.removeprefix("http://")
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self.asked = 0
        self.refused: list[str] = []

    def _run(self) -> None:
        while not self._stop.wait(0.05):
            connection = http.client.HTTPConnection(self._address, timeout=30)
            connection.request("GET", "/readyz")
            reply = connection.getresponse()
            body = reply.read().decode()
            if reply.status != 200:
                self.refused.append(body)
            self.asked += 1
            connection.close()

    def __enter__(self) -> Sampler:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()


def entry(name: str, model_id: str) -> dict[str, Any]:
    """An endpoint as the serving Task has it."""
    return {"engine_type": "triton", "serving_url": name, "version": "", "model_id": model_id}


def is_ready(stack: Small) -> bool:
    """What a load balancer asks."""
    return httpx.get(f"{stack.url}/readyz").status_code == 200


@pytest.mark.long
def test_adding_endpoints_never_makes_a_serving_gateway_unready(
    make_stack: Callable[..., Small], tmp_path: Path
) -> None:
    """Ten of them, three broken: at model sync, at Triton, at the file store. Each reason reaches who must know it."""
    stack = make_stack()
    api = text_bundles.Api(stack.env)
    good = api.model(text_bundles.packed(text_bundles.text_bundle(tmp_path / "good")))
    unreadable = text_bundles.text_bundle(tmp_path / "unreadable")
    (unreadable / "model.onnx").write_bytes(b"\x08garbage" * 99)
    unknown = text_bundles.text_bundle(tmp_path / "unknown", operator="Nonsense")
    broken = {
        "unreadable": (api.model(text_bundles.packed(unreadable)), "model sync refuses the model: "),
        "unknown": (api.model(text_bundles.packed(unknown)), "Triton refuses the model: "),
        "changed": (api.model(tmp_path / "good.zip", sha256="0" * 64), "does not match its recorded hash"),
    }
    entries = {"first": entry("first", good)}
    api.endpoints(entries)
    stack.until(lambda s: s["ready"], "the first endpoint being served")
    added = [*(f"new-{number}" for number in range(7)), *broken]
    with Sampler(stack.url) as sampler:
        for name in sorted(added, key=lambda name: name[::-1]):
            entries = {**entries, name: entry(name, broken[name][0] if name in broken else good)}
            api.endpoints(entries)
            time.sleep(0.3)

        def is_settled(status: Any) -> bool:
            failed = {p["url"]: p["reason"] for p in status["pending"] if p["state"] == "failed"}
            return (
                set(entries) - set(broken) == {e["url"] for e in status["endpoints"]}
                and set(broken) == set(failed)
                and all(words in failed[name] for name, (_, words) in broken.items())
            )

        stack.until(is_settled, "seven being served and three having failed for their reasons")
        body = httpx.get(f"{stack.url}/readyz").json()
    assert [] == sampler.refused
    assert sampler.asked > 30
    assert set(broken) == {text.split()[0] for text in body["degraded"]}

    reply = httpx.post(f"{stack.url}/serve/unreadable", json={"text": "good"})
    assert (503, "model_not_ready") == (reply.status_code, reply.json()["code"])
    assert "model sync refuses the model: " in reply.json()["error"]
    assert "model sync refuses the model: " in httpx.get(stack.url).text
    command = [sys.executable, "-m", "deploy.cli.main", "status", "--wait", "--url", stack.url, "--timeout", "280s"]
    waited = subprocess.run(command, capture_output=True, text=True, env=stack.env, cwd=ROOT, timeout=LIMIT_S)
    assert (3, True) == (waited.returncode, "unreadable failed: model sync refuses" in waited.stderr), waited


@pytest.mark.long
def test_a_starting_gateway_is_ready_once_it_serves_what_was_served(
    make_stack: Callable[..., Small], tmp_path: Path
) -> None:
    """Its Triton is empty at first: a rollout that took it for ready would drop the endpoint."""
    stack = make_stack()
    api = text_bundles.Api(stack.env)
    model = api.model(text_bundles.packed(text_bundles.text_bundle(tmp_path / "good")))
    code = text_bundles.packed(text_bundles.code_bundle(tmp_path / "code"))
    hook = {**entry("hook", api.model(code)), "engine_type": "custom"}
    api.endpoints({"e": entry("e", model), "hook": hook})
    stack.until(lambda s: s["ready"] and len(s["endpoints"]) == 2, "both being served")
    stack.stop_triton()
    until(lambda: any("does not answer" in text for text in httpx.get(f"{stack.url}/readyz").json()["degraded"]))
    assert is_ready(stack)  # the hook answers
    stack.restart_gateway()
    stack.until(lambda s: [e["url"] for e in s["endpoints"]] == ["hook"], "the hook being served")
    reply = httpx.get(f"{stack.url}/readyz")
    assert 503 == reply.status_code
    assert json.loads(reply.text)["reasons"][0].startswith("waiting for what was served before: e (")
    stack.start_triton()
    until(lambda: is_ready(stack))
    assert {"e", "hook"} == {e["url"] for e in stack.status()["endpoints"]}

"""Preprocess code in front of Triton or instead of it: unchanged ClearML classes, isolated from each other."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from tests import sites
from tests.unit.gateway.conftest import answering
from tests.waiting import LIMIT_S

TRITON = """
import numpy as np
class Preprocess:
    def preprocess(self, body, state, collect_custom_statistics_fn=None):
        return np.array([body["x"]], dtype="float32")
    def postprocess(self, data, state, collect_custom_statistics_fn=None):
        return {"y": data.tolist()}
"""


INSTEAD = """
    def process(self, data, state, collect_custom_statistics_fn=None):
        return data * 10
"""
ONLY_AFTER = TRITON[TRITON.index("class") :].replace("preprocess", "unused", 1)


@pytest.mark.parametrize(
    ("source", "body", "y"),
    [(TRITON, {"x": [1, 2]}, [[2.0, 3.0]]), (TRITON + INSTEAD, {"x": [1, 2]}, [[10.0, 20.0]]),
     (ONLY_AFTER, {"text": "good good bad"}, [[1.0, 2.0]])],
    ids=["model", "process", "only postprocess"],
)  # fmt: skip
async def test_hook_in_front_of_triton_gets_arrays_back(stack: Any, source: str, body: Any, y: Any) -> None:
    """ClearML's triton engine: one input, one output, arrays in and out. ``process`` replaces the model. With only
    ``postprocess`` on a text model the gateway tokenizes.
    """
    stack.add_text_model("m1")
    stack.add_hook("t", source, model_id="m1", engine="triton")
    if source is ONLY_AFTER:
        stack.load("t")
    else:
        model = {"x": "float32"}, {"y": "float32"}, lambda inputs: {"y": inputs["x"] + 1}
        stack.backend.add(stack.triton_name("t"), *model)
    await stack.served("t")
    assert {"y": y} == (await stack.client.post("/serve/t", json=body)).json()


@pytest.mark.parametrize(
    ("line", "status", "code"),
    [
        ("raise ValueError('n must be positive')", 422, "input_refused"), ("return object()", 500, "hook_failed"),
        ("raise RuntimeError('no')", 500, "hook_failed"), ("raise SystemExit(3)", 500, "hook_failed"),
        ("raise __import__('asyncio').CancelledError", 500, "hook_failed"),
    ],
)  # fmt: skip
async def test_hook_that_raises_fails_its_request_only(stack: Any, line: str, status: int, code: str) -> None:
    """An exception of user code becomes an answer without a traceback. The worker continues."""
    source = f"""
class Preprocess:
    def process(self, body, state, collect_custom_statistics_fn=None):
        if body.get("ok"):
            return {{"fine": True}}
        {line}
"""
    stack.add_hook("h", source)
    await stack.served("h")
    reply = await stack.client.post("/serve/h", json={"n": 1})
    assert (status, code) == (reply.status_code, reply.json()["code"])
    assert "Traceback" not in reply.text
    assert {"fine": True} == (await stack.client.post("/serve/h", json={"ok": True})).json()


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        ("x = 1\nimport nosuchmodule", "nosuchmodule"), ("x = 1\nimport nosuchmodule", ":2"),
        ("import os\nos._exit(7)", "exited with code 7"), ("class Other: pass", "defines no class Preprocess"),
        ("def broken(:", "SyntaxError"), ("raise SystemExit", "SystemExit"),
        ("class Preprocess:\n    def load(self, path):\n        raise RuntimeError('no weights')", "no weights"),
        ("class Preprocess:\n    def preprocess(self, body, state, s=None):\n        return body", "needs a process"),
    ],
)  # fmt: skip
async def test_a_hook_that_cannot_be_loaded_is_reported_and_others_are_served(
    stack: Any, source: str, reason: str
) -> None:
    """Import, class and load errors are the endpoint's state, with the reason and its place."""
    stack.add_hook("bad", source, engine="custom")
    stack.deploy("fine")
    await stack.served("fine")
    await stack.until(lambda: stack.state("bad")[0] == "failed")
    assert reason in stack.state("bad")[1]


async def test_changed_code_is_live_and_old_code_serves_until_then(stack: Any) -> None:
    """New code under the same name replaces the old. If it cannot be loaded, the old code stays."""
    stack.add_hook("h", answering("{'v': 1}"))
    await stack.served("h")
    assert {"v": 1} == (await stack.client.post("/serve/h", json={})).json()
    stack.add_hook("h", "import nosuchmodule")
    await stack.until(lambda: stack.state("h")[0] == "failed")
    assert {"v": 1} == (await stack.client.post("/serve/h", json={})).json()
    stack.add_hook("h", answering("{'v': 2}"))
    await stack.served("h")
    await stack.until(lambda: stack.state("h") == ("", ""))
    assert {"v": 2} == (await stack.client.post("/serve/h", json={})).json()


async def test_send_request_uses_http_for_endpoints_that_are_not_served_here(stack: Any) -> None:
    """With the address of `clearml-serving config --base-serving-url`. A refused call returns None."""
    seen: list[tuple[str, Any]] = []

    def answer(asked: sites.Asked) -> tuple[int, Any]:
        seen.append((asked.path, asked.json))
        return (200, {"y": 7}) if "/known/2" in asked.path else (404, {})

    stack.add_hook("h", answering("[self.send_request('known', '2', {'x': 1}), self.send_request('unknown', data={})]"))
    with sites.site(answer) as address:
        stack.registry.settings["serving_base_url"] = f"{address}/serve/"
        await stack.served("h")
        assert [{"y": 7}, None] == (await stack.client.post("/serve/h", json={})).json()
    assert [("/serve/known/2", {"x": 1}), ("/serve/unknown", {})] == seen


async def test_raw_bytes_reach_hooks(stack: Any) -> None:
    """A hook gets a body that is not JSON unchanged, and may return bytes."""
    stack.add_hook("h", answering("body[::-1]"))
    await stack.served("h")
    reply = await stack.client.post("/serve/h", content=b"\x00\x01", headers={"content-type": "image/png"})
    assert (b"\x01\x00", "application/octet-stream") == (reply.content, reply.headers["content-type"])


async def test_unload_is_called_when_an_endpoint_is_removed(stack: Any, tmp_path: Path) -> None:
    """`unload` runs once, after the last request."""
    mark = tmp_path / "unloaded"
    stack.add_hook("h", answering("{}") + f"    def unload(self):\n        open({str(mark)!r}, 'x').close()\n")
    await stack.served("h")
    del stack.registry.endpoints["h"]
    await stack.until(mark.exists)


@pytest.mark.parametrize(
    ("section", "own", "given", "expected"),
    [
        ("model_monitoring_eps", "own", "given", "own"), ("model_monitoring_eps", "", "given", "given"),
        ("endpoints", "own", "given", "given"), ("endpoints", "own", "", "own"), ("endpoints", "", "", ""),
    ],
)  # fmt: skip
async def test_which_preprocess_code_runs(stack: Any, section: str, own: str, given: str, expected: str) -> None:
    """Versions of auto-update run the code in their model's folder, else the rule's. A fixed endpoint runs its own,
    else that of the folder. Without any code, the reason is reported.
    """
    folder = stack.folder / "bundle"
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    if own:
        (folder / "preprocess.py").write_text(answering("{'code': 'own'}"))
    stack.add_package("m1", folder)
    if given:
        stack.add_hook("h", answering("{'code': 'given'}"), model_id="m1", engine="custom")
    else:
        stack.registry.add_endpoint("h", "m1", engine="custom")
    entry = {**stack.registry.endpoints.pop("h"), "version": "1"}
    stack.registry.sections[section] = json.dumps({"h/1": entry})
    if not expected:
        await stack.until(lambda: stack.state("h/1")[0] == "failed")
        assert "preprocess code" in stack.state("h/1")[1]
        return
    await stack.served("h/1")
    assert {"code": expected} == (await stack.client.post("/serve/h/1", json={})).json()


async def test_time_limit_answers_while_the_thread_goes_on(stack: Any, tmp_path: Path) -> None:
    """The request gets 504. The thread is free again only when the code returns; other endpoints answer meanwhile."""
    gate = tmp_path / "gate"
    source = f"""
import time
from pathlib import Path
class Preprocess:
    def process(self, body, state, s=None):
        while body["wait"] and not Path({str(gate)!r}).exists():
            time.sleep(0.01)
        return {{}}
"""
    stack.add_hook("h", source, options={"hook_timeout": "100ms", "hook_threads": "1"})
    stack.deploy("fast")
    await stack.served("h", "fast")
    assert 504 == (await stack.client.post("/serve/h", json={"wait": True})).status_code
    assert 200 == (await stack.client.post("/serve/fast", json={"text": "good"})).status_code
    assert 504 == (await stack.client.post("/serve/h", json={"wait": False})).status_code
    gate.touch()
    async with asyncio.timeout(LIMIT_S):
        while 504 == (status := (await stack.client.post("/serve/h", json={"wait": False})).status_code):
            pass
    assert 200 == status

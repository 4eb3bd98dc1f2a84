"""Code in hook processes: a crash, leak or hang harms only the request that caused it."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from tests.unit.gateway.conftest import answering
from tests.waiting import LIMIT_S, soon, until

ROOT = Path(__file__).parents[4]

HOOK = """
import os, time
class Preprocess:
    def preprocess(self, body, state, collect_custom_statistics_fn=None):
        state["n"] = body.get("n")
        return body
    def process(self, data, state, collect_custom_statistics_fn=None):
        do = data.get("do")
        if do == "sleep": time.sleep(data["s"])
        if do == "spin":
            while True: pass
        if do == "_exit": os._exit(3)
        if do == "segfault":
            import ctypes
            ctypes.string_at(0)
        if do == "stuck": __import__("re").match("(a+)+$", "a" * 40 + "b")  # no other thread runs
        if do == "fork": os.fork()
        if do == "fork and exit":
            if os.fork(): os._exit(3)
            time.sleep(1000)
        if do == "fork and stay":
            child = os.fork()
            if child == 0: time.sleep(1000)
            return {"child": child}
        if do == "leak":
            kept = []
            while True: kept.append(bytearray(4 << 20))
        if do == "garbage":
            for fd in range(3, 1000):
                try: os.write(fd, b"\\xff" * 64)
                except OSError: pass
            time.sleep(100)
        return {"n": state["n"], "pid": os.getpid()}
"""


@pytest.fixture
async def stack(make_stack: Callable[..., Any]) -> AsyncIterator[Any]:
    """A running stack with the default setting: the custom engine runs in processes."""
    stack = make_stack(code_engine="custom")
    async with stack.gateway.running(), stack.client:
        yield stack


def is_alive(pid: int) -> bool:
    """Return whether a process exists and is not a zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] not in "ZX"
    except OSError:
        return False


async def answered(stack: Any, body: Any) -> Any:
    """Ask until there is an answer: on a busy machine, any request may take longer than a limit of the endpoint."""
    async with asyncio.timeout(LIMIT_S):
        while 504 == (reply := await stack.client.post("/serve/h", json=body)).status_code:
            pass
    return reply.json()


@pytest.mark.parametrize(
    ("do", "status", "said"),
    [
        ("_exit", 500, "exited with code 3"),
        ("segfault", 500, "SIGSEGV"),
        ("leak", 500, "emory"),
        ("garbage", 500, "not a frame"),
        ("spin", 504, "deadline_exceeded"),
        ("fork", 200, ""),
        ("fork and exit", 500, "exited with code 3"),
    ],
)
async def test_hook_that_misbehaves_hurts_only_its_own_request(stack: Any, do: str, status: int, said: str) -> None:
    """Other requests of this and other endpoints are answered, during it and after it."""
    limit = {"x-request-timeout-ms": "1000"} if status == 504 else {}  # for the others, a busy machine may take seconds
    stack.add_hook("h", HOOK, options={"hook_memory": "300M"})
    stack.deploy("fast")
    await stack.served("h", "fast")
    post = stack.client.post
    beside = [asyncio.create_task(post("/serve/h", json={"do": "sleep", "s": 0.4, "n": n})) for n in range(2)]
    bad = asyncio.create_task(post("/serve/h", json={"do": do}, headers=limit))
    await asyncio.sleep(0.1)
    assert 200 == (await post("/serve/fast", json={"text": "good"})).status_code
    assert [0, 1] == [(await b).json()["n"] for b in beside]
    reply = await bad
    assert status == reply.status_code, reply.text
    assert said in reply.text
    assert "Traceback" not in reply.text
    after = [(await post("/serve/h", json={"n": n})).json()["n"] for n in range(3)]
    assert [0, 1, 2] == after


STUCK = """
import time, os
class Preprocess:
    {} process(self, body, state, s=None):
        time.sleep(body.get("s", 0))
        return {{"pid": os.getpid()}}
"""


@pytest.mark.parametrize(("engine", "kind"), [("custom", "def"), ("custom_async", "async def")])
async def test_time_limit_of_an_endpoint_ends_its_process(stack: Any, engine: str, kind: str) -> None:
    """`gateway.hook_timeout` answers 504 and kills the process, also an async one whose request cannot be cancelled. A
    new one serves the next request.
    """
    options = {"hook_timeout": "500ms", "hook_processes": "1"}
    stack.add_hook("h", STUCK.format(kind), engine=engine, options=options)
    await stack.served("h")
    before = (await answered(stack, {}))["pid"]
    reply = await stack.client.post("/serve/h", json={"s": 600})
    assert (504, "deadline_exceeded") == (reply.status_code, reply.json()["code"])
    assert before != (await answered(stack, {}))["pid"]
    await soon(lambda: not is_alive(before))


async def test_async_hooks_of_one_process_answer_many_at_a_time(stack: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Thirty requests that wait for each other are answered. A caller that leaves cancels its request."""
    monkeypatch.setattr("gateway.hooks.process._CANCEL_S", LIMIT_S)  # a process that is late here was not stuck
    source = """
import asyncio, os
class Preprocess:
    came = 0
    async def process(self, body, state, s=None):
        self.came += 1
        while self.came < body["wait_for"]:
            await asyncio.sleep(0.01)
        return {"pid": os.getpid()}
"""
    stack.add_hook("h", source, engine="custom_async", options={"hook_processes": "1"})
    await stack.served("h")
    post = stack.client.post
    replies = await asyncio.gather(*(post("/serve/h", json={"wait_for": 30}) for _ in range(30)))
    assert 1 == len({r.json()["pid"] for r in replies})
    late = await post("/serve/h", json={"wait_for": 1000}, headers={"x-request-timeout-ms": "200"})
    assert 504 == late.status_code
    assert replies[0].json() == (await post("/serve/h", json={"wait_for": 1})).json(), "it was cancelled, not killed"


async def test_processes_forked_by_a_hook_end_with_its_process(stack: Any) -> None:
    """A removed endpoint leaves no process running."""
    stack.add_hook("h", HOOK)
    await stack.served("h")
    child = (await stack.client.post("/serve/h", json={"do": "fork and stay"})).json()["child"]
    parent = (await stack.client.post("/serve/h", json={})).json()["pid"]
    assert is_alive(child)
    del stack.registry.endpoints["h"]
    await soon(lambda: not is_alive(child) and not is_alive(parent))


@pytest.mark.parametrize("engine", ["triton", "custom"])
async def test_send_request_reaches_other_endpoints(make_stack: Callable[..., Any], engine: str) -> None:
    """Blocking, from several threads of a hook at a time, and awaited in async hooks."""
    plain = """
from concurrent.futures import ThreadPoolExecutor
class Preprocess:
    def process(self, body, state, s=None):
        with ThreadPoolExecutor(4) as threads:
            both = list(threads.map(lambda n: self.send_request("h", data={"n": n}), [1, 2]))
        return {"n": [r["n"] for r in both], "nobody": self.send_request("nobody", version="1", data={})}
"""
    awaited = """
import asyncio
class Preprocess:
    async def process(self, body, state, s=None):
        both = await asyncio.gather(*(self.send_request("h", data={"n": n}) for n in (1, 2)))
        return {"n": [r["n"] for r in both], "nobody": await self.send_request("nobody", data={})}
"""
    stack = make_stack(code_engine=engine)
    async with stack.gateway.running(), stack.client:
        stack.add_hook("h", HOOK)
        stack.add_hook("plain", plain)
        stack.add_hook("awaited", awaited)
        await stack.served("h", "plain", "awaited")
        found = [(await stack.client.post(f"/serve/{name}", json={})).json() for name in ("plain", "awaited")]
    assert [{"n": [1, 2], "nobody": None}] * 2 == found


KINDS = """
import datetime, pathlib
import numpy as np
class Result:
    def __init__(self): self.parts = (n for n in range(2))
class Reply:
    status_code, body, raw_headers = 201, b"made", [(b"x-own", b"1")]
class Split:
    status_code, body, raw_headers = 200, b"x", [(b"x-own", b"1\\r\\nset-cookie: a=1\\r\\n\\r\\nHTTP/1.1 200 OK")]
class Preprocess:
    def process(self, body, state, collect=None):
        collect({"x": np.float32(0.5)})
        kinds = {"numpy": lambda: {"a": np.arange(3)[::2], "b": np.float32(0.5), "c": {1: (2, {3})}},
                 "bytes": lambda: b"\\x00\\x01", "reply": Reply, "split": Split, "object": object, "none": lambda: None,
                 "nan": lambda: float("nan"), "big": lambda: list(range(200000)),
                 "generator": lambda: (n for n in (0, 1)),
                 "types": lambda: [datetime.timedelta(seconds=90), pathlib.Path("a/b"), Result()]}
        if body["is"] == "refuse": raise ValueError("no, thanks")
        return kinds[body["is"]]()
"""
ANSWERS = {
    "numpy": (200, b'{"a":[0,2],"b":0.5,"c":{"1":[2,[3]]}}'), "bytes": (200, b"\0\1"), "reply": (201, b"made"),
    "none": (200, b"null"), "nan": (200, b"null"), "generator": (200, b"[0,1]"), "split": (500, b"line breaks"),
    "types": (200, b'[90.0,"a/b",{"parts":[0,1]}]'), "big": (200, b"199999]"), "refuse": (422, b"no, thanks"),
    "object": (500, b"hook_failed"), "missing": (500, b"hook_failed"),
}  # fmt: skip
"""Status, and a part of the answer."""


@pytest.mark.parametrize("engine", ["triton", "custom"])
async def test_answers_from_a_process_equal_those_from_a_thread(make_stack: Callable[..., Any], engine: str) -> None:
    """Arrays, sets, bytes, own responses, statistics and refusals. A header cannot split the response."""
    stack = make_stack(code_engine=engine)
    async with stack.gateway.running(), stack.client:
        stack.add_hook("h", KINDS)
        await stack.served("h")
        for kind, (status, part) in ANSWERS.items():
            reply = await stack.client.post("/serve/h", json={"is": kind})
            assert (status, True) == (reply.status_code, part in reply.content), (kind, reply.text[:300])
            assert ("1" if kind == "reply" else None) == reply.headers.get("x-own")
            assert "set-cookie" not in reply.headers


async def test_large_bodies_and_answers_are_not_mixed_up(stack: Any) -> None:
    """Many at a time."""
    stack.add_hook("h", answering("dict(body)"))
    await stack.served("h")
    bodies = [{"n": n, "x": list(range(n, n + size))} for n, size in enumerate([1, 300_000, 5, 200_000, 100_000, 2])]
    replies = await asyncio.gather(*(stack.client.post("/serve/h", json=body) for body in bodies))
    assert bodies == [r.json() for r in replies]


@pytest.mark.parametrize(
    ("engine", "option", "value"),
    [("custom", "hook_memory", "plenty"), ("triton", "hook_memory", "1G"), ("triton", "hook_processes", "2")],
)
async def test_options_that_cannot_be_used_are_refused(make_stack: Any, engine: str, option: str, value: str) -> None:
    """The reason names the option. Code in front of Triton runs in threads of the gateway."""
    stack = make_stack(code_engine=engine)
    async with stack.gateway.running(), stack.client:
        stack.add_hook("h", HOOK, options={option: value})
        await stack.until(lambda: stack.state("h")[0] == "failed")
        assert f"gateway.{option}" in stack.state("h")[1]


ALONE = """
import asyncio, sys
from pathlib import Path
from gateway.hooks.pool import HookPool, PoolLimits
from gateway.hooks.process import Program
async def main():
    pool = HookPool(Program("h", "custom", Path(sys.argv[1]), None, {}), PoolLimits(), None)
    await pool.start()
    loop = asyncio.get_running_loop()
    outcome, _ = await pool.ask({"do": "fork and stay"}, loop.time() + 300)
    print(*pool.pids, outcome.answer["child"], flush=True)
    await pool.ask({"do": "stuck"}, loop.time() + 600)
asyncio.run(main())
"""


def test_processes_end_with_a_gateway_that_is_killed(tmp_path: Path) -> None:
    """SIGKILL of the worker ends all its hook processes, even one that never reads its socket, and their forks."""
    code = tmp_path / "hook.py"
    code.write_text(HOOK)
    worker = subprocess.Popen(
        [sys.executable, "-c", ALONE, str(code)], stdout=subprocess.PIPE, text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    assert worker.stdout is not None
    pids = [int(word) for word in worker.stdout.readline().split()]
    assert [True, True] == [is_alive(pid) for pid in pids]
    time.sleep(0.3)
    worker.send_signal(signal.SIGKILL)
    worker.wait()
    worker.stdout.close()
    until(lambda: not any(is_alive(pid) for pid in pids), what="the end of its processes")

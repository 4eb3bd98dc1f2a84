"""How long do requests wait while the configuration of 1,000 endpoints changes?

One gateway process over real HTTP. The registry is in memory and answers sections as the clearml SDK writes them, and
the backend answers at once, so only the gateway's own work counts. Requests go one after the other to endpoints of all
kinds while nothing happens (the machine's own noise), and while endpoints are added, replaced and removed, weights are
set, and one setting changes that concerns every endpoint. For each it reports the time until the change took effect,
the longest wait of a request, how many waited more than 20 ms, and the longest steps of the event loop, by wall clock
and by the CPU time of its thread.

A shared machine makes requests wait too. So the CPU time of the whole gateway process is read before and after each
request: while a request waits for the gateway, some thread of it works (one at a time, since they share the
interpreter's lock), and other programs do not add to that time. ``worked_20_ms`` counts the requests for which it was
more than 20 ms, their own work included.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import http.client
import json
import os
import sys
import tempfile
import threading
import time
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.shared.command import again, parser, tell
from benchmarks.shared.processes import Child
from benchmarks.shared.results import RESULTS
from gateway.registry.ledger import with_records
from gateway.testing import FakeRegistry

TAKES = "2 minutes"
SAVES = "results/changes.jsonl"
SHARE = """{endpoint} {{
  endpoint = "{endpoint}"
  weights = [{left}, {right}]
  load_endpoints = ["e0", "e1"]
}}"""
ENTRY = """{key} {{
  engine_type = "triton"
  serving_url = "{key}"
  model_id = "{model}"
  version = ""
  input_size = [[1, 28, 28]]
  input_type = ["float32"]
  input_name = ["x"]
  output_size = [[-1, 10]]
  output_type = ["float32"]
  output_name = ["y"]
  auxiliary_cfg {{
    platform = "\\"onnxruntime_onnx\\""
    dynamic_batching {{
      preferred_batch_size = [4, 8]
      max_queue_delay_microseconds = 100
    }}
    max_batch_size = 16
  }}
}}"""


class TextRegistry(FakeRegistry):
    """A registry with texts as the SDK writes them; each model is a file of a few bytes."""

    def __init__(self, folder: Path, count: int) -> None:
        super().__init__()
        self._folder = folder
        self.models_of = {f"e{i}": f"{i:032x}" for i in range(count)}
        self.share = 0.1
        self.settings: dict[str, str] = {}
        self.changes = 0
        self.calls = 0
        self.write()

    def write(self) -> None:
        """Publish what was changed."""
        entries = [ENTRY.format(key=key, model=model) for key, model in self.models_of.items()]
        texts = {
            "endpoints": "\n".join(entries),
            "canary": SHARE.format(endpoint="shared", left=self.share, right=1 - self.share),
        }
        self._task = json.dumps({
            "id": "t", "name": "benchmark",
            "configuration": {name: {"name": name, "value": text} for name, text in texts.items()},
            "hyperparams": {"General": {k: {"name": k, "value": v} for k, v in self.settings.items()}},
        })  # fmt: skip
        self.changes += 1

    def marker(self) -> str:
        return str(self.changes)

    def task(self) -> Mapping[str, Any]:
        self.calls += 1
        return with_records(json.loads(self._task), self.ledger)

    def model(self, model_id: str) -> Mapping[str, Any]:
        return self.records([model_id])[model_id]

    def records(self, model_ids: Collection[str]) -> Mapping[str, Mapping[str, Any]]:
        self.calls += 1
        time.sleep(0.002)  # as long as a call to a nearby server
        return {model_id: self._record(model_id) for model_id in model_ids}

    def _record(self, model_id: str) -> dict[str, Any]:
        return {
            "id": model_id, "name": model_id, "uri": f"file:///models/{model_id}.onnx", "framework": "onnx",
            "system_tags": [], "ready": True, "project": "p", "task": "t", "tags": ["a", "b"], "metadata": {},
        }  # fmt: skip

    def download(self, uri: str, folder: Path) -> Path:
        target = folder / uri.rpartition("/")[2]
        target.write_bytes(b"weights")
        return target


def change(registry: TextRegistry, what: str) -> tuple[str, str]:
    """Make one change; return a url and the model id (or weight) that shows that it took effect."""
    number = len(registry.models_of) + registry.changes
    match what:
        case "add":
            registry.models_of[f"new{number}"] = shown = f"{number:032x}"
            url = f"new{number}"
        case "replace":
            url, shown = "e7", f"{10**6 + number:032x}"
            registry.models_of[url] = shown
        case "remove":
            url, shown = list(registry.models_of)[-1], ""
            del registry.models_of[url]
        case "weights":
            registry.share = round((registry.share + 0.1) % 0.9, 2)
            url, shown = "shared", str(registry.share)
        case "all":
            registry.settings["triton_grpc_server"] = shown = f"127.0.0.1:{9000 + number % 1000}"
            url = "e0"
        case _:
            raise ValueError(what)
    registry.write()
    return url, shown


class Steps:
    """The steps of the event loop: the longest ones since they were last read."""

    def __init__(self) -> None:
        self.found: list[tuple[float, float, str]] = []
        self.collected = 0.0
        self.generation = 0
        gc.callbacks.append(self._collecting)
        plain = asyncio.Handle._run  # noqa: SLF001 - there is no other place that sees every step
        steps = self

        def run(handle: Any) -> Any:
            wall, cpu = time.perf_counter(), time.thread_time()
            try:
                return plain(handle)
            finally:
                took = time.thread_time() - cpu, time.perf_counter() - wall
                if max(took) > 0.002:
                    steps.found.append((*took, _name_of(handle)))

        asyncio.Handle._run = run  # type: ignore[method-assign]  # noqa: SLF001 - as above

    def _collecting(self, phase: str, info: dict[str, int]) -> None:
        # Garbage collection stops every thread, whichever one started it.
        if phase == "start":
            self._since = time.thread_time()
        else:
            self.collected, self.generation = max(
                (self.collected, self.generation), (time.thread_time() - self._since, info["generation"])
            )

    def take(self) -> dict[str, Any]:
        """Return the longest steps by CPU and by wall clock, in milliseconds, and start anew."""
        found, self.found = self.found, []
        longest = sorted(((round(c * 1e3, 1), round(w * 1e3, 1), what) for c, w, what in found), reverse=True)
        collected, self.collected = self.collected, 0.0
        return {
            "step_cpu_ms": longest[0][0] if longest else 2.0,
            "step_wall_ms": max((wall for _, wall, _ in longest), default=2.0),
            "collection_ms": round(collected * 1e3, 1), "generation": self.generation, "steps": longest[:12],
        }  # fmt: skip


def _name_of(handle: Any) -> str:
    """Return what a step ran: a task's coroutine and what it waits for, or anything else as asyncio shows it."""
    task = getattr(handle._callback, "__self__", None)  # noqa: SLF001 - as above
    if not isinstance(task, asyncio.Task):
        return repr(handle)[:200]
    coroutine: Any = task.get_coro()
    names = [task.get_name()] if "build" in task.get_name() or "retire" in task.get_name() else []
    while coroutine is not None and len(names) < 6:
        names.append(str(getattr(coroutine, "__qualname__", type(coroutine).__name__)))
        coroutine = getattr(coroutine, "cr_await", None)
    return " > ".join(names)


def serve(folder: Path, count: int) -> None:
    """Run the gateway. A line on stdin is a change; a line on stdout is its result."""
    import uvicorn

    from gateway.app import Gateway
    from gateway.settings import Settings
    from gateway.testing import FakeBackend
    from gateway.triton.port import ModelInfo, TensorInfo

    class AnyBackend(FakeBackend):
        async def is_ready(self, model: str) -> bool:
            del model
            return True

        def _check(self, model: str) -> None:
            if model not in self.models:
                info = ModelInfo(
                    model, (TensorInfo("x", "float32", (-1, 2)),), (TensorInfo("y", "float32", (-1, 2)),), 64
                )
                self.models[model] = (info, lambda inputs: {"y": inputs["x"]})

    registry = TextRegistry(folder, count)
    gateway = Gateway(
        Settings(state_dir=folder / "state", poll_frequency="500ms"), registry=registry,
        make_backend=lambda *_: AnyBackend(), is_whole_process=True,
    )  # fmt: skip
    server = uvicorn.Server(
        uvicorn.Config(gateway, port=0, http=gateway.http_protocol, loop="asyncio", log_config=None, ws="none",
                       proxy_headers=False, access_log=False, server_header=False, date_header=False)
    )  # fmt: skip
    steps = Steps()

    def is_live(what: str, url: str, shown: str, before: str) -> bool:
        now = gateway.table.current
        if what == "weights":
            return url in now.canaries and abs(next(iter(now.canaries[url].shares.values())) - float(shown)) < 1e-6
        if what == "remove":
            return url not in now.endpoints
        if what == "all":
            return now.revision != before and len(now.endpoints) == len(registry.models_of) and not now.pending
        return url in now.endpoints and now.endpoints[url].identity.model_id == shown

    def commands(loop: asyncio.AbstractEventLoop) -> None:
        for line in sys.stdin:
            what = json.loads(line)
            if what == "quiet":
                print(json.dumps(steps.take()), flush=True)
                continue
            steps.take()
            registry.calls = 0
            began = time.monotonic()
            before = gateway.table.current.revision
            url, shown = change(registry, what)
            while not is_live(what, url, shown, before):
                time.sleep(0.02)
            live = time.monotonic() - began
            time.sleep(1.0)  # clean-up and saving after the change count too
            print(json.dumps({"live_s": round(live, 2), "calls": registry.calls, **steps.take()}), flush=True)
        loop.call_soon_threadsafe(os._exit, 0)

    async def run() -> None:
        task = asyncio.create_task(server.serve())
        began = time.monotonic()
        while not server.started or len(gateway.table.current.endpoints) < count:  # noqa: ASYNC110 - facts, not events
            await asyncio.sleep(0.05)
        boot = {"boot_s": round(time.monotonic() - began, 2), "port": server.servers[0].sockets[0].getsockname()[1]}
        print(json.dumps({**boot, **steps.take()}), flush=True)
        threading.Thread(target=commands, args=(asyncio.get_running_loop(),), daemon=True).start()
        await task

    asyncio.run(run())


class Caller(threading.Thread):
    """Sends one request after the other to endpoints in turn and records how long each took."""

    def __init__(self, port: int, process: int) -> None:
        super().__init__(daemon=True)
        self._clock = (~process << 3) | 2
        """The CPU time of another process: Linux' MAKE_PROCESS_CPUCLOCK(process, CPUCLOCK_SCHED)."""
        self._connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
        self.took: list[tuple[float, float]] = []
        """Seconds by the wall clock, and of the gateway's work during them."""
        self.failed = 0
        self.is_over = False

    def run(self) -> None:
        body = json.dumps({"x": [[1.0, 2.0]]})
        number = 0
        while not self.is_over:
            number = (number + 37) % 500
            worked, began = time.clock_gettime(self._clock), time.perf_counter()
            self._connection.request("POST", f"/serve/e{number + 10}", body, {"content-type": "application/json"})
            reply = self._connection.getresponse()
            content = reply.read()
            self.took.append((time.perf_counter() - began, time.clock_gettime(self._clock) - worked))
            if reply.status != 200:
                self.failed += 1
                self.first_error = content
            time.sleep(0.002)

    def take(self) -> dict[str, Any]:
        """Return what was measured since the last call."""
        found, self.took = self.took, []
        took, worked = (sorted(column) for column in zip(*found, strict=True))
        return {
            "requests": len(took), "failed": self.failed, "longest_ms": round(took[-1] * 1e3, 1),
            "p999_ms": round(took[int(len(took) * 0.999)] * 1e3, 1), "median_ms": round(took[len(took) // 2] * 1e3, 2),
            "above_20_ms": sum(t > 0.02 for t in took),
            "most_work_ms": round(worked[-1] * 1e3, 1), "worked_20_ms": sum(t > 0.02 for t in worked),
        }  # fmt: skip


def main(argv: Sequence[str] | None = None) -> int:
    """Measure and print one JSON line per change."""
    arguments = parser(__name__, __doc__, saves=SAVES)
    arguments.add_argument("--endpoints", type=int, default=1000)
    arguments.add_argument("--rounds", type=int, default=3)
    arguments.add_argument("--changes", default="add,replace,weights,remove,all")
    arguments.add_argument("--steps", action="store_true", help="also the longest steps of the loop, by name")
    arguments.add_argument("--serve", type=Path, help=argparse.SUPPRESS)
    options = arguments.parse_args(argv)
    if options.serve:
        serve(options.serve, options.endpoints)
        return 0

    shown: list[dict[str, Any]] = []

    def show(found: dict[str, Any]) -> None:
        shown.append({name: value for name, value in found.items() if options.steps or name != "steps"})
        tell(shown[-1])

    with tempfile.TemporaryDirectory() as folder:
        gateway = Child(again(__name__, "--serve", folder, "--endpoints", str(options.endpoints)))
        try:
            ready = gateway.hear()
            show({"change": "boot", **ready})
            caller = Caller(ready["port"], gateway.pid)
            caller.start()
            for what in ("quiet", *options.changes.split(",") * options.rounds):
                time.sleep(2.0)
                caller.take()
                if what == "quiet":
                    time.sleep(5.0)
                found = gateway.ask(what)
                show({"change": what, **caller.take(), **found})
            caller.is_over = True
            caller.join(5)
        finally:
            gateway.stop()
    if options.save:
        (RESULTS / "changes.jsonl").write_text("".join(json.dumps(one) + "\n" for one in shown))
    return 0

"""``python -m benchmarks.observing``: what metrics, and spans, cost the gateway in CPU per request.

Three gateways, one process each, real HTTP through the gateway's own protocol class, a backend in memory that answers
at once (so that nothing hides the cost): with the observer switched off, with everything on (built-in and declared
variables, references of drift, a scrape every five seconds), and with spans exported to a receiver as well. Rounds of
load go to one after the other, in an order that changes; CPU time is the kernel's, of the whole process. The ratio with
its 95 % bootstrap interval is of rounds that were neighbours.
"""

from __future__ import annotations

import argparse
import asyncio
import http.server
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
import zipfile
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import corpus
from benchmarks.load import Load, render
from benchmarks.measure import cpu_seconds, pin
from benchmarks.protocols import bundle

_FORMS = ("off", "on", "spans")
_SCRAPE_S = 5.0
"""What `triton-gateway up` has Prometheus do; its default is a minute."""


def serve(form: str, state: Path) -> None:
    """Run one gateway until the process is ended; prints its port."""
    import uvicorn
    import uvloop

    from gateway.app import Gateway
    from gateway.metrics import drift
    from gateway.settings import Settings
    from gateway.spec import decode, decode_model, triton_model_name
    from gateway.testing import FakeBackend, FakeRegistry

    registry, backend = FakeRegistry(), FakeBackend()
    archive = state / "m.zip"
    folder = bundle(state / "bundle", "BertForSequenceClassification")
    if form != "off":
        rng = np.random.default_rng(0)
        (folder / drift.FILE).write_text(drift.encode({
            "token_length": drift.scalar_bins(rng.integers(10, 30, 2000).astype(float)),
            "top_score": drift.scalar_bins(rng.uniform(0.5, 1, 2000)),
            "entropy": drift.scalar_bins(rng.uniform(0, 1, 2000)),
            "predicted_label": drift.enum_bins({"GOOD": 60, "BAD": 40}),
            "score": drift.scalar_bins(rng.uniform(0.5, 1, 2000)),
        }))  # fmt: skip
        registry.sections["metric_logging"] = json.dumps({"e/*": {"endpoint": "e/*", "metrics": {
            "score": {"type": "scalar", "buckets": [0.1 * i for i in range(1, 10)]},
            "label": {"type": "enum", "buckets": ["GOOD", "BAD"]},
        }}})  # fmt: skip
    with zipfile.ZipFile(archive, "w") as packed:
        for file in folder.iterdir():
            packed.write(file, file.name)
    registry.add_model("m", archive, is_package=True)
    registry.add_endpoint("e", "m")
    name = triton_model_name(decode(registry.task()).endpoints["e"], decode_model(registry.model("m")))
    backend.add(
        name, {"input_ids": "int64", "attention_mask": "int64"}, {"logits": "float32"},
        lambda inputs: {"logits": (inputs["input_ids"].sum(1)[:, None] % np.array([3, 5])).astype(np.float32)},
    )  # fmt: skip
    spans = None
    if form == "spans":
        from gateway.spans import exporting

        spans = exporting("http/protobuf", version="benchmark", instance="one")
    gateway = Gateway(
        Settings(state_dir=state / "state", poll_frequency="1h"), registry=registry,
        make_backend=lambda *_: backend, is_whole_process=True, spans=spans,
    )  # fmt: skip
    if form == "off":
        # There is no such setting: what is measured against is a gateway whose observer does nothing.
        nothing = lambda *_, **__: None  # noqa: E731
        for part in ("started", "finished", "batched", "cached", "words", "fell_back", "waited"):
            setattr(gateway.observer, part, nothing)
    server = uvicorn.Server(
        uvicorn.Config(gateway, port=0, http=gateway.http_protocol, loop="uvloop", log_config=None, ws="none",
                       proxy_headers=False, access_log=False, server_header=False, date_header=False)
    )  # fmt: skip

    async def run() -> None:
        task = asyncio.create_task(server.serve())
        while not server.started or "e" not in gateway.table.current.endpoints:  # noqa: ASYNC110 - facts, not events
            await asyncio.sleep(0.05)
        print(server.servers[0].sockets[0].getsockname()[1], flush=True)
        await task

    uvloop.run(run())


class _Receiver:
    """Takes spans over OTLP/HTTP and counts the bytes: what a collector nearby does."""

    def __init__(self) -> None:
        outer = self
        self.bytes = 0

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                outer.bytes += len(self.rfile.read(int(self.headers["content-length"])))
                self.send_response(200)
                self.send_header("content-length", "0")
                self.end_headers()

            def log_message(self, *_: object) -> None:
                pass

        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()


class _Gateway:
    """One of the compared gateways."""

    def __init__(self, form: str, folder: Path, receiver: str, core: int) -> None:
        state = folder / form
        state.mkdir()
        environ = {**os.environ, "OTEL_EXPORTER_OTLP_ENDPOINT": receiver} if form == "spans" else dict(os.environ)
        self.form = form
        self.process = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.observing", "--serve", form, "--state", str(state)],
            stdout=subprocess.PIPE, text=True, env=environ, cwd=Path(__file__).parents[1],
        )  # fmt: skip
        assert self.process.stdout is not None
        self.port = int(self.process.stdout.readline())
        pin([self.process.pid], [core])

    def round(self, bodies: list[bytes], seconds: float, connections: int, start: int) -> float:
        """CPU microseconds per answered request of one round."""
        url = f"http://127.0.0.1:{self.port}/serve/e"
        stop = threading.Event()

        def scrape() -> None:
            at = _SCRAPE_S / 2
            while not stop.wait(at):
                at = _SCRAPE_S
                with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/metrics", timeout=10) as reply:
                    reply.read()

        scraper = threading.Thread(target=scrape, daemon=True)
        load = Load(url, render(url, bodies), connections=connections, start=start)
        before = cpu_seconds([self.process.pid])
        if self.form != "off":
            scraper.start()
        outcome = load.closed_loop(seconds)
        if self.form != "off":
            stop.set()
            scraper.join()
        used = cpu_seconds([self.process.pid]) - before
        load.close()
        assert not outcome.errors, outcome.first_error
        return used / outcome.requests * 1e6


def _interval(values: list[float], seed: int = 1) -> tuple[float, float]:
    source = random.Random(seed)
    medians = sorted(statistics.median(source.choices(values, k=len(values))) for _ in range(2000))
    return medians[50], medians[-51]


def main() -> int:
    """Measure and print one JSON line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.observing", description=__doc__)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--connections", type=int, default=16)
    parser.add_argument("--texts", default="short", choices=sorted(corpus.KINDS))
    parser.add_argument("--serve", choices=_FORMS, help=argparse.SUPPRESS)
    parser.add_argument("--state", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        serve(options.serve, options.state)
        return 0
    texts = corpus.Corpus(seed=1).texts(options.texts, 20_000)
    bodies = [json.dumps({"text": text}).encode() for text in texts]
    receiver = _Receiver()
    cores = sorted(os.sched_getaffinity(0))
    if len(cores) > 1:
        os.sched_setaffinity(0, set(cores[1:]))
    gateways: list[_Gateway] = []
    try:
        with tempfile.TemporaryDirectory() as folder:
            gateways = [_Gateway(form, Path(folder), receiver.url, cores[0]) for form in _FORMS]
            for gateway in gateways:
                gateway.round(bodies, 2.0, options.connections, 0)
            found: dict[str, list[float]] = {form: [] for form in _FORMS}
            order = random.Random(1)
            for number in range(options.rounds):
                for gateway in order.sample(gateways, len(gateways)):
                    took = gateway.round(bodies, options.seconds, options.connections, number * 997)
                    found[gateway.form].append(took)
                    time.sleep(0.2)
                sys.stderr.write(f"round {number + 1}: {', '.join(f'{f} {v[-1]:.1f}' for f, v in found.items())} µs\n")
            for gateway in gateways:
                gateway.process.terminate()
                gateway.process.wait(30)
    finally:
        for gateway in gateways:
            if gateway.process.poll() is None:
                gateway.process.kill()
    report: dict[str, Any] = {"texts": options.texts, "connections": options.connections, "rounds": options.rounds}
    report |= {f"{form}_us": round(statistics.median(values), 1) for form, values in found.items()}
    for form in _FORMS[1:]:
        ratios = [a / b for a, b in zip(found[form], found["off"], strict=True)]
        low, high = _interval(ratios)
        report[f"{form}_ratio"] = [round(statistics.median(ratios), 3), round(low, 3), round(high, 3)]
    print(json.dumps(report))
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""What do metrics and spans cost the gateway in CPU per request?

There are five gateways, one process each, with real HTTP through the gateway's own protocol class and a backend in
memory that answers at once, so that nothing hides the cost. ``off``: no observer. ``on``: everything (built-in and
declared variables, drift references, a scrape every five seconds). ``spans``: spans exported to a receiver as well.
``unwatched``: everything but the built-in variables of texts and their answers. ``every``: all texts and answers are
counted instead of a share. Rounds of load go to one gateway after the other, in changing order; CPU time is the
kernel's, of the whole process. Ratios, ``sampled_us`` (``on`` less ``unwatched``) and ``texts_us`` (``every`` less
``unwatched``) are formed from neighbouring rounds, with 95 % bootstrap intervals. ``--forms`` measures only some.
``--save`` keeps the numbers of all forms and puts the cost of watching texts into ``docs/drift.md`` and that of spans
into ``docs/benchmarks.md``.
"""

from __future__ import annotations

import argparse
import asyncio
import http.server
import json
import os
import random
import socket
import statistics
import subprocess
import tempfile
import threading
import time
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.shared import corpus
from benchmarks.shared.command import ROOT, again, narrator, parser, tell
from benchmarks.shared.load import closed_loop, render
from benchmarks.shared.machine import cpu_seconds, pin
from benchmarks.shared.results import DOCS, facts_of, put, save
from benchmarks.shared.statistics import difference, ratio
from tests import processes
from tests.words import text_bundle

TAKES = "7 minutes"
SAVES = "results/observing.json"
_FORMS = ("off", "on", "spans", "unwatched", "every")
_SCRAPE_S = 5.0
"""Seconds between scrapes by `triton-gateway up`'s Prometheus, whose own default is a minute."""


def serve(form: str, state: Path) -> None:
    """Run one gateway until the process is ended; prints its port."""
    import uvloop

    from gateway.app import Gateway
    from gateway.http.server import listen
    from gateway.metrics import drift, texts
    from gateway.settings import Settings
    from gateway.spec import decode, triton_model_name
    from tests.fakes import FakeBackend, FakeRegistry

    if form == "every":
        texts.MAX_A_SECOND = 1_000_000  # type: ignore[misc]
    registry, backend = FakeRegistry(), FakeBackend()
    archive = state / "m.zip"
    folder = text_bundle(state / "bundle", words=corpus.vocabulary()[:8000])
    if form != "off":
        reference = {
            "token_length": {"12": 500.0, "24": 1_200.0, "+Inf": 300.0}, "top_score": {"0.9": 1_600.0, "+Inf": 400.0},
            "predicted_label": {"GOOD": 60.0, "BAD": 40.0}, "language": {"en": 1_900.0, "none": 100.0},
            "letter_case": {"mixed": 1_800.0, "lower": 200.0}, "unusual_word_ratio": {"0.2": 800.0, "+Inf": 1_200.0},
        }  # fmt: skip
        (folder / drift.FILE).write_text(drift.encode(drift.Reference(reference, corpus.usual_words())))
        registry.sections["metric_logging"] = json.dumps({"e/*": {"endpoint": "e/*", "metrics": {
            "score": {"type": "scalar", "buckets": [0.1 * i for i in range(1, 10)]},
            "label": {"type": "enum", "buckets": ["GOOD", "BAD"]},
        }}})  # fmt: skip
    with zipfile.ZipFile(archive, "w") as packed:
        for file in folder.iterdir():
            packed.write(file, file.name)
    registry.add_model("m", archive, is_package=True)
    registry.add_endpoint("e", "m")
    name = triton_model_name(decode(registry.task()).endpoints["e"], registry.model("m"))
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
    # No setting does this: the gateway to compare with has an observer that does nothing.
    nothing = lambda *_, **__: None  # noqa: E731
    if form == "off":
        for part in ("started", "finished", "called", "cached", "waited"):
            setattr(gateway.observer, part, nothing)
    if form == "unwatched":
        texts.TextVariables.read = lambda *_: ()  # type: ignore[method-assign]
    listener = socket.create_server((processes.LOOPBACK, 0), backlog=1024)

    async def run() -> None:
        async with gateway.running():
            await listen(gateway, listener)
            while "e" not in gateway.table.current.endpoints:  # noqa: ASYNC110 - a fact, not an event
                await asyncio.sleep(0.05)
            print(listener.getsockname()[1], flush=True)
            await asyncio.Event().wait()

    uvloop.run(run())


class _Receiver:
    """Receives spans over OTLP/HTTP and counts their bytes, like a nearby collector."""

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
        argv = again(__name__, "--serve", form, "--state", str(state))
        self.process = subprocess.Popen(argv, stdout=subprocess.PIPE, text=True, cwd=ROOT, env=environ)
        assert self.process.stdout is not None
        self.port = json.loads(self.process.stdout.readline())
        pin([self.process.pid], [core])

    def round(self, bodies: list[bytes], seconds: float, connections: int, start: int) -> float:
        """Return CPU microseconds per answered request in one round."""
        url = f"http://127.0.0.1:{self.port}/serve/e"
        stop = threading.Event()

        def scrape() -> None:
            at = _SCRAPE_S / 2
            while not stop.wait(at):
                at = _SCRAPE_S
                processes.ask(f"http://127.0.0.1:{self.port}/metrics")

        scraper = threading.Thread(target=scrape, daemon=True)
        before = cpu_seconds([self.process.pid])
        if self.form != "off":
            scraper.start()
        outcome = closed_loop(url, render(url, bodies), seconds, connections=connections, start=start)
        if self.form != "off":
            stop.set()
            scraper.join()
        used = cpu_seconds([self.process.pid]) - before
        assert not outcome.errors, outcome.first_error
        return used / outcome.requests * 1e6


def shown(found: Mapping[str, Any]) -> str:
    """Return the text of the page."""
    cost, low, high = found["sampled_us"]
    each, least, most = found["texts_us"]
    return (
        f"- The built-in variables of texts and answers cost {cost:.1f} µs of CPU per request ({low:.1f} to {high:.1f} "
        f"in 95 of 100 cases). They would cost {each:.1f} µs ({least:.1f} to {most:.1f}) if all were counted.\n"
        f"- A request took {found['off_us']:.1f} µs without metrics and {found['on_us']:.1f} µs with all that is on by "
        f"default: {found['on_ratio'][0]:.2f} times as much.\n"
    )


def shown_spans(found: Mapping[str, Any]) -> str:
    """Return the text of the page about spans."""
    times, low, high = found["spans_ratio"]
    return (
        f"With a span for every request and stage a request took {found['spans_us']:.0f} µs of CPU, {times:.1f} times "
        f"as much as without metrics and spans ({low:.1f} to {high:.1f} in 95 of 100 cases"
        f"{', in a run of its own at ' + found['spans_commit'] if 'spans_commit' in found else ''}).\n"
    )


def main(argv: Sequence[str] | None = None) -> int:
    """Measure and print one JSON line."""
    arguments = parser(__name__, __doc__, saves=SAVES)
    arguments.add_argument("--rounds", type=int, default=10)
    arguments.add_argument("--seconds", type=float, default=5.0)
    arguments.add_argument("--connections", type=int, default=16)
    arguments.add_argument("--texts", default="short", choices=sorted(corpus.KINDS))
    arguments.add_argument("--forms", nargs="+", choices=_FORMS, metavar="FORM", help=", ".join(_FORMS))
    arguments.add_argument("--serve", choices=_FORMS, help=argparse.SUPPRESS)
    arguments.add_argument("--state", type=Path, help=argparse.SUPPRESS)
    options = arguments.parse_args(argv)
    if options.serve:
        serve(options.serve, options.state)
        return 0
    texts = corpus.Corpus(seed=1).texts(options.texts, 20_000)
    bodies = [json.dumps({"text": text}).encode() for text in texts]
    forms = options.forms or list(_FORMS)
    if options.save and set(forms) != set(_FORMS):
        arguments.error("--save needs all forms")
    receiver, say = _Receiver(), narrator()
    cores = sorted(os.sched_getaffinity(0))
    if len(cores) > 1:
        os.sched_setaffinity(0, set(cores[1:]))
    gateways: list[_Gateway] = []
    found: dict[str, list[float]] = {form: [] for form in forms}
    with tempfile.TemporaryDirectory() as folder:
        try:
            for form in forms:
                gateways.append(_Gateway(form, Path(folder), receiver.url, cores[0]))
                gateways[-1].round(bodies, 2.0, options.connections, 0)
            order = random.Random(1)
            for number in range(options.rounds):
                for gateway in order.sample(gateways, len(gateways)):
                    took = gateway.round(bodies, options.seconds, options.connections, number * 997)
                    found[gateway.form].append(took)
                    time.sleep(0.2)
                say(f"round {number + 1}: {', '.join(f'{f} {v[-1]:.1f}' for f, v in found.items())} µs")
        finally:
            for gateway in gateways:
                gateway.process.kill()
                gateway.process.wait()
    report: dict[str, Any] = {
        "facts": facts_of(options.rounds), "texts": options.texts, "connections": options.connections,
    }  # fmt: skip
    report |= {f"{form}_us": round(statistics.median(values), 1) for form, values in found.items()}
    for form in forms:
        if form != "off" and "off" in found:
            one = ratio(list(zip(found[form], found["off"], strict=True)))
            report[f"{form}_ratio"] = [round(one.median, 3), round(one.low, 3), round(one.high, 3)]
    for name, form in (("sampled_us", "on"), ("texts_us", "every")):
        if {form, "unwatched"} <= found.keys():
            one = difference(list(zip(found[form], found["unwatched"], strict=True)))
            report[name] = [round(one.median, 2), round(one.low, 2), round(one.high, 2)]
    tell(report)
    if options.save:
        save("observing", report)
        put(DOCS / "drift.md", "observing", shown(report))
        put(DOCS / "benchmarks.md", "spans", shown_spans(report))
    return 0

"""A real Prometheus with our rules scrapes a gateway and Triton: sums equal the client's, every panel has data."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import threading
import time
import urllib.parse
import urllib.request
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import pytest

from dashboards.boards import ANNOTATIONS, BOARDS
from deploy.controller.drift.judging import EVERY_S, Judging
from deploy.controller.gateways import Gateways
from deploy.tools import http_client, probes
from gateway.app import Gateway
from gateway.metrics import drift
from gateway.registry.ledger import Record
from gateway.settings import Settings
from gateway.spec import decode, triton_model_name
from gateway.triton.backend import TritonBackend
from tests.core_client import in_a_thread
from tests.fakes import FakeRegistry
from tests.kube_tools import RULES
from tests.processes import Server, free_port
from tests.tiny import counting_bundle
from tests.waiting import LIMIT_S, until

pytestmark = [pytest.mark.integration, pytest.mark.prometheus]


KNOWN_EMPTY = {
    # no GPU here
    "Gateway · Triton": ("GPU", "GPU memory"),
    # nobody sends labels, is refused, known by name or checked, and all goes well
    "Gateway · overview": (
        "Accuracy", "True labels", "Confusions", "Alerts", "Closed connections", "Payload log", "Store of quotas",
        "Refused callers", "Tenants", "Tokens in by tenant", "Tokens out by tenant", "Over quota", "Sources of callers",
    ),
    # its controller only judges, and compares no versions
    "Gateway · drift": ("Variables", "Categories"),
    "Gateway · canary": ("Phase of the rollout", "Evidence against the canary"),
    "Gateway · capacity": ("Refused, by reason",),
}  # fmt: skip
"""Panels that have no data in this test, by board."""

HOOK = """
class Preprocess:
    def process(self, body, state, collect_custom_statistics_fn=None):
        if "fail" in body or "bad" in body.get("text", ""):
            raise RuntimeError("this version is broken")
        return {"label": "GOOD"}
"""


def write_bundle(folder: Path) -> Path:
    """A text classification model of two labels: how often 'bad' and 'good' occur."""
    counting_bundle(folder, max_position_embeddings=16)
    lengths, labels = {"4": 100.0, "8": 100.0, "+Inf": 0.0}, {"GOOD": 90.0, "BAD": 10.0}
    (folder / drift.FILE).write_text(
        drift.encode(drift.Reference({"token_length": lengths, "predicted_label": labels}))
    )
    return folder


@dataclass
class Running:
    """A gateway that serves from Triton, and a Prometheus that watches both."""

    gateway: str
    prometheus: str
    registry: FakeRegistry
    sent: Counter[str] = field(default_factory=Counter)

    def query(self, expr: str) -> list[dict[str, Any]]:
        """Series of an instant query; an expression that Prometheus refuses fails the test."""
        url = f"{self.prometheus}/api/v1/query?{urllib.parse.urlencode({'query': expr})}"
        try:
            with urllib.request.urlopen(url, timeout=LIMIT_S) as reply:
                return list(json.loads(reply.read())["data"]["result"])
        except urllib.error.HTTPError as error:
            raise AssertionError(f"{expr}\n{error.read().decode()}") from None

    def traffic(self, seconds: float, stop: threading.Event | None = None) -> None:
        """Requests of every kind, without retries; outcomes are counted as the client sees them."""
        bodies: list[tuple[str, Any]] = [
            ("t", {"text": "good film"}),
            ("t/2", {"x0": 0.3, "animal": "cat", "latency": 3}),
            ("t/2", {"x0": 9, "animal": "eel"}),
            ("t/1", {"text": ["bad film", "hello zebra world"]}),
            ("t/1", {"text": "good " * 40}),
            ("t/2", {"fail": True}),
            ("t", {"text": "bad"}),
            ("t/1", {"text": ""}),
            ("nowhere", {"text": "hello"}),
            ("cached", {"text": "hello"}),
        ]
        end = time.monotonic() + seconds
        with httpx.Client(base_url=self.gateway, trust_env=False) as client:
            while time.monotonic() < end and not (stop and stop.is_set()):
                for path, body in bodies:
                    reply = client.post(f"/serve/{path}", json=body)
                    code = "ok" if reply.status_code == 200 else reply.json()["code"]
                    self.sent[code] += 1
                time.sleep(0.05)


@contextlib.contextmanager
def prometheus_of(folder: Path, **targets: str) -> Iterator[str]:
    """A Prometheus that scrapes one target for each job and evaluates ``folder/rules`` every second; its address."""
    found, url = shutil.which("prometheus"), f"http://127.0.0.1:{free_port()}"
    assert found, "prometheus is not on PATH: install Debian's, or leave these tests out: -m 'not prometheus'"
    (folder / "prometheus.yml").write_text(json.dumps({
        "global": {"scrape_interval": "1s", "evaluation_interval": "1s"},
        "rule_files": [str(folder / "rules" / "*.yml")],
        "scrape_configs": [{"job_name": job, "static_configs": [{"targets": [one]}]} for job, one in targets.items()],
    }))  # fmt: skip
    argv = [
        found, f"--config.file={folder / 'prometheus.yml'}", f"--storage.tsdb.path={folder / 'tsdb'}",
        "--enable-feature=exemplar-storage", f"--web.listen-address={url.removeprefix('http://')}",
    ]  # fmt: skip
    server = Server("prometheus", argv, env=os.environ, log=folder / "prometheus.log")
    try:
        yield url
    finally:
        server.kill()


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory, embedded_triton: Any) -> Iterator[Running]:
    """Everything up, with a first look of Prometheus at some traffic; who needs more sends it."""
    folder = tmp_path_factory.mktemp("prometheus")
    bundle = write_bundle(folder / "bundle")
    registry = FakeRegistry()
    registry.add_model("m", Path(shutil.make_archive(str(bundle), "zip", bundle)), is_package=True)
    hook = folder / "hook.py"
    hook.write_text(HOOK)
    registry.add_artifact("py_code_t", hook)
    registry.add_endpoint("t", "m", version="1")
    registry.ledger.write([Record("objective", "t", {"latency": "300ms"})])
    registry.add_endpoint("t", None, version="2", engine="custom", preprocess_artifact="py_code_t")
    registry.add_endpoint("t", "m", version="3")
    shadow = {"endpoint": "t", "to": "t/3", "percent": 100.0, "tolerance": 0.1}
    rollout = {"phase": "running", "canary": "t/2", "stable": "t/1", "guard": "", "guarded_until": 0.0}
    registry.ledger.write([Record("shadow", "t", shadow), Record("rollout", "t", {"endpoint": "t", **rollout})])
    registry.add_endpoint("cached", "m", auxiliary_cfg={"gateway": {"response_cache": 100}})
    registry.canary["t"] = {"endpoint": "t", "weights": [0.4, 0.6], "load_endpoints": ["t/2", "t/1"]}
    metrics = {
        "x0": {"type": "scalar", "buckets": [0, 0.1, 0.5]}, "animal": {"type": "enum", "buckets": ["cat", "dog"]},
        "latency": {"type": "value"},
    }  # fmt: skip
    registry.sections["metric_logging"] = json.dumps({"t/*": {"endpoint": "t/*", "metrics": metrics}})
    spec = decode(registry.task())
    for url in ("t/1", "t/3", "cached"):
        name = triton_model_name(spec.endpoints[url], registry.model("m"))
        embedded_triton.serve(bundle, name=name)
    gateway = Gateway(
        Settings(state_dir=folder / "state", poll_frequency="1s", triton_grpc=embedded_triton.grpc), registry=registry,
        make_backend=lambda address: TritonBackend(address, options=()),
    )  # fmt: skip
    quick = folder / "rules"
    quick.mkdir()
    for path in RULES.glob("*.yml"):  # every second, so that nobody waits for a rule
        (quick / path.name).write_text(re.sub(r"interval: \d+s", "interval: 1s", path.read_text()))
    ends = threading.Event()
    with in_a_thread(gateway) as port:
        # A controller that looks once a second.
        judged: dict[Any, Any] = {}
        judging = Judging(
            registry, Gateways(lambda: [made.gateway]), judged.update, clock=lambda: EVERY_S * time.monotonic(),
            wall=time.time, begin=lambda look: look(),
        )  # fmt: skip
        controller = probes.serve(0, lambda _: probes.text_answer(probes.metrics(dict(judged))), host="127.0.0.1")
        targets = {
            "triton-gateway": f"127.0.0.1:{port}", "controller": f"127.0.0.1:{controller.server_port}",
            "triton": embedded_triton.metrics,
        }  # fmt: skip
        made = Running(f"http://127.0.0.1:{port}", "", registry)

        def judge() -> None:
            while not ends.wait(1):
                judging({})

        judges = threading.Thread(target=judge)
        judges.start()
        try:
            with prometheus_of(folder, **targets) as made.prometheus:
                until(lambda: (ready := http_client.call(f"{made.gateway}/v2/health/ready")) and ready.status == 200)
                until(lambda: (ready := http_client.call(f"{made.prometheus}/-/ready")) and ready.status == 200)
                until(lambda: len(made.query("up == 1")) == 3)
                made.traffic(2)
                yield made
        finally:
            ends.set()
            judges.join()
            controller.shutdown()
            controller.server_close()


def test_counts_equal_the_clients_counts(running: Running) -> None:
    """Every request once, under the outcome that its caller saw."""

    def counted() -> dict[str, int]:
        return {
            series["metric"]["outcome"]: int(float(series["value"][1]))
            for series in running.query("sum by (outcome) (gateway_requests_total) > 0")
        }

    until(lambda: counted() == dict(running.sent))
    assert {"ok", "input_refused", "hook_failed", "endpoint_not_found"} == set(counted())


def panel_queries() -> list[tuple[str, str, str]]:
    """Board, panel and expression of every query, with template variables filled in."""
    found = [(b.title, p.title, q.expr) for b in BOARDS for p in b.panels() for q in p.queries]
    found += [("annotations", name, expr) for name, expr, _ in ANNOTATIONS]
    filled = []
    for board, panel, expr in found:
        for name, value in (("$__rate_interval", "30s"), ("$endpoint", ".*"), ("$version", ".*"), ("$variable", ".*"),
                            ("$model", ".*"), ("$pool", ".*")):  # fmt: skip
            expr = expr.replace(name, value)
        filled.append((board, panel, expr))
    return filled


def test_every_panel_of_every_board_has_data(running: Running) -> None:
    """Its query is run; what has no data here is listed, with the reason, and is then really empty of meaning."""
    stop, wanted = threading.Event(), panel_queries()
    load = threading.Thread(target=running.traffic, args=(LIMIT_S, stop))
    load.start()
    running.registry.add_endpoint("late", None, engine="custom", preprocess_artifact="py_code_t")

    empty = [one for one in wanted if one[1] not in KNOWN_EMPTY.get(one[0], ())]

    def filled() -> bool:  # a scrape that a busy machine does not answer within a second leaves all empty for a moment
        empty[:] = [one for one in empty if all(series["value"][1] == "NaN" for series in running.query(one[2]))]
        return not empty

    try:
        with contextlib.suppress(AssertionError):
            until(filled, pause=2)
        assert [] == empty
    finally:
        stop.set()
        load.join()
    panels = {one[:2] for one in wanted}
    assert panels >= {(board, panel) for board, names in KNOWN_EMPTY.items() for panel in names}

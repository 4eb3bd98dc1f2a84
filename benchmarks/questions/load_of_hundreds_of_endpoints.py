"""What do hundreds of endpoints cost: questions to Triton, time to start and to change, memory, series of metrics?

Real gateways (all in one process, each with its own channels) follow a registry in memory and ask stand-ins for Triton
over gRPC (`benchmarks/shared/stand_in.py`). Every version has a bundle of its own, a small text model. Counted: calls
to one Triton per second and gateway while all versions wait for it, while all are served, and while one endpoint of
them changes; seconds from "all loaded" until all are served; which versions a change builds; memory per version; series
of one version that has answered requests.
"""

from __future__ import annotations

import asyncio
import json
import re
import shutil
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import psutil

from benchmarks.shared.command import parser
from benchmarks.shared.results import RESULTS
from benchmarks.shared.stand_in import StandIn
from benchmarks.shared.words import text_bundle
from gateway.app import Gateway
from gateway.settings import Settings
from gateway.spec import EndpointSpec, decode, decode_model, triton_model_name
from gateway.testing import FakeBackend, FakeRegistry
from gateway.triton.backend import TritonBackend

TAKES = "10 minutes"
SAVES = "results/endpoints.jsonl"


def main(argv: Sequence[str] | None = None) -> int:
    """Print what was counted as one JSON object."""
    size = parser(__name__, __doc__, saves=SAVES)
    size.add_argument("--endpoints", type=int, default=300)
    size.add_argument("--versions", type=int, default=2)
    size.add_argument("--gateways", type=int, default=20)
    size.add_argument("--tritons", type=int, default=4)
    size.add_argument("--seconds", type=float, default=5.0, help="how long each state is watched")
    given = size.parse_args(argv)
    found = asyncio.run(_measure(given))
    sys.stdout.write(json.dumps(found) + "\n")
    if given.save:
        with (RESULTS / "endpoints.jsonl").open("a") as out:
            out.write(json.dumps(found) + "\n")
    return 0


async def _measure(given: Any) -> dict[str, Any]:
    folder = Path(tempfile.mkdtemp(prefix="endpoints-"))
    fake = FakeBackend()
    tritons = [StandIn(fake) for _ in range(given.tritons)]
    for one in tritons:
        await one.start()
    registry = FakeRegistry()
    file = Path(shutil.make_archive(str(folder / "bundle"), "zip", text_bundle(folder / "bundle")))
    urls = []
    for number in range(given.endpoints):
        for version in range(1, given.versions + 1):
            model_id = f"m{number}-{version}"
            copy = folder / f"{model_id}.zip"
            copy.hardlink_to(file)
            registry.add_model(model_id, copy, is_package=True)
            registry.add_endpoint(f"e{number}", model_id, version=str(version))
            urls.append(f"e{number}/{version}")
    address = "ipv4:" + ",".join(one.address for one in tritons)
    gateways = [_gateway(folder / f"gateway-{n}", registry, address) for n in range(given.gateways)]
    before = psutil.Process().memory_info().rss
    running = [gateway.running() for gateway in gateways]
    try:
        await asyncio.gather(*(one.__aenter__() for one in running))
        versions = len(urls)
        within = 100 + 0.2 * versions * given.gateways  # seconds: all gateways build in one process
        await _until(lambda: all(len(g.table.current.pending) == versions for g in gateways), within)
        await asyncio.sleep(2 * given.seconds)
        waiting = await _rate(tritons, given)
        began = time.perf_counter()
        specs = decode(registry.task()).endpoints
        for url in urls:
            _load(fake, registry, specs, url)
        await _until(lambda: all(len(g.table.current.endpoints) == versions for g in gateways), within)
        until_served = time.perf_counter() - began
        rss = psutil.Process().memory_info().rss
        steady = await _rate(tritons, given)
        served = [dict(g.table.current.endpoints) for g in gateways]
        asked = _asked(tritons)
        began = time.perf_counter()
        registry.add_endpoint("e0", "m0-1", version="1", auxiliary_cfg={"gateway": {"max_length": "64"}})
        _load(fake, registry, decode(registry.task()).endpoints, "e0/1")
        pairs = list(zip(gateways, served, strict=True))
        await _until(lambda: all(g.table.current.endpoints["e0/1"] is not s["e0/1"] for g, s in pairs), within)
        until_changed = time.perf_counter() - began
        changed = {url for g, s in zip(gateways, served, strict=True)
                   for url, one in g.table.current.endpoints.items() if one is not s[url]}  # fmt: skip
        series = await _series(gateways[0])
        return {
            "endpoints": given.endpoints, "versions": given.versions, "gateways": given.gateways,
            "tritons": given.tritons, "calls_waiting": waiting, "calls_serving": steady,
            "all_served_s": round(until_served, 1), "one_changed_s": round(until_changed, 1),
            "rebuilt": sorted(changed), "calls_of_change": dict(_asked(tritons) - asked),
            "bytes_per_version_and_gateway": round((rss - before) / versions / given.gateways), "series": series,
        }  # fmt: skip
    finally:
        await asyncio.gather(*(one.__aexit__(None, None, None) for one in running), return_exceptions=True)
        for one in tritons:
            await one.stop()
        shutil.rmtree(folder, ignore_errors=True)


def _gateway(state: Path, registry: FakeRegistry, address: str) -> Gateway:
    settings = Settings(state_dir=state, poll_frequency="1s", ready_timeout=600, triton_grpc=address)
    return Gateway(settings, registry=registry, make_backend=lambda to, _compression: TritonBackend(to))


def _load(fake: FakeBackend, registry: FakeRegistry, specs: Mapping[str, EndpointSpec], url: str) -> None:
    spec = specs[url]
    assert spec.model_id is not None
    name = triton_model_name(spec, decode_model(registry.model(spec.model_id)))
    fake.add(name, {"input_ids": "int64", "attention_mask": "int64"}, {"logits": "float32"}, _classify)


def _classify(inputs: dict[str, Any]) -> dict[str, Any]:
    rows = len(inputs["input_ids"])
    return {"logits": np.zeros((rows, 2), np.float32)}


async def _until(holds: Any, within: float) -> None:
    async with asyncio.timeout(within):
        while not holds():  # noqa: ASYNC110 - facts of many gateways
            await asyncio.sleep(0.05)


def _asked(tritons: Sequence[StandIn]) -> Counter[str]:
    return sum((one.asked for one in tritons), Counter())


async def _rate(tritons: Sequence[StandIn], given: Any) -> dict[str, float]:
    """Calls per second to one Triton from one gateway, by method."""
    before, began = _asked(tritons), time.perf_counter()
    await asyncio.sleep(given.seconds)
    seconds = time.perf_counter() - began
    made = _asked(tritons) - before
    return {name: round(count / seconds / given.tritons / given.gateways, 2) for name, count in sorted(made.items())}


async def _series(gateway: Gateway) -> int:
    """How many series one version has that has answered."""
    async with httpx.AsyncClient(transport=httpx.ASGITransport(gateway), base_url="http://gateway") as client:
        for _ in range(5):
            await client.post("/serve/e1/1", json={"text": "good"})
        await asyncio.sleep(2)
        text = (await client.get("/metrics?detail=full")).text
    lines = [line for line in text.splitlines() if re.search(r'endpoint="e1"', line) and 'version="1"' in line]
    return len(lines)

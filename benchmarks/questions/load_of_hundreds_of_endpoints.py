"""What do hundreds of endpoints cost many gateways: calls to Triton, start and change, CPU, memory?

Every gateway is its own process and follows the same registry in memory. Stand-ins for Triton in this process answer
over gRPC (`benchmarks/shared/stand_in.py`), or with `--real` one real Triton behind a counting proxy. Every version has
its own bundle, a small text model. It counts: calls to one Triton per second and gateway while all versions wait for
it, while all are served, and while one endpoint changes; calls to the registry and CPU time of a gateway in each of
these phases; seconds until all are served everywhere; the versions that a change rebuilds; memory per version.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import shutil
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any, Final

import numpy as np
import psutil

from benchmarks.shared.backends import TOKENS, Backend, Triton
from benchmarks.shared.command import again, parser
from benchmarks.shared.processes import Child
from benchmarks.shared.results import DOCS, put, save, saved, table
from benchmarks.shared.stand_in import Door, StandIn
from benchmarks.shared.tiny import counting_bundle
from gateway.app import Gateway
from gateway.registry.ledger import Record, Records
from gateway.settings import Settings
from gateway.spec import decode, decode_model, triton_model_name
from gateway.testing import FakeBackend, FakeLedger, FakeRegistry
from gateway.triton.backend import TritonBackend

TAKES = "10 minutes"
SAVES = "results/endpoints.json"
_WITHIN_S: Final = 600.0
_ALWAYS: Final = ("ServerLive",)
"""Called once a second, whatever changes."""
_MEMORY: Final = Path("/dev/shm")
"""Twenty machines have twenty disks. Here they would share one, so nothing is written to disk."""


def main(argv: Sequence[str] | None = None) -> int:
    """Print the counts as one JSON object."""
    size = parser(__name__, __doc__, saves=SAVES)
    size.add_argument("--endpoints", type=int, default=300)
    size.add_argument("--versions", type=int, default=2)
    size.add_argument("--gateways", type=int, default=20)
    size.add_argument("--tritons", type=int, default=4)
    size.add_argument("--seconds", type=float, default=10.0, help="how long each state is watched")
    size.add_argument("--real", action="store_true", help="one real Triton, and few models: --endpoints 20")
    size.add_argument("--follow", metavar="FOLDER", help="run as one gateway; TRITONS: addresses of the stand-ins")
    size.add_argument("--address", default="", metavar="TRITONS")
    given = size.parse_args(argv)
    if given.follow:
        asyncio.run(_follow(Path(given.follow), given))
        return 0
    found = asyncio.run(_measure(given))
    sys.stdout.write(json.dumps(found) + "\n")
    if given.save:
        kept = {**(saved("endpoints") or {}), "real Triton" if given.real else "stand-ins": found}
        save("endpoints", kept)
        put(DOCS / "pools.md", "endpoints", shown(kept))
    return 0


def shown(kept: Mapping[str, Any]) -> str:
    """Return the table of docs/pools.md. It contains no seconds: all gateways share this machine."""
    runs = [kept[name] for name in ("stand-ins", "real Triton") if name in kept]

    def size(run: Any) -> str:
        tritons = "a real Triton" if run["tritons"] == "real" else f"{run['tritons']} stand-ins for Triton"
        return f"{run['endpoints']} × {run['versions']} versions, {run['gateways']} gateways, {tritons}"

    def calls(made: Mapping[str, float]) -> str:
        return ", ".join(f"{name} {count:g}" for name, count in made.items() if count)

    rows: dict[str, Callable[[Any], str]] = {
        "calls per second to one Triton from one gateway, while all versions wait for it": lambda r: (
            calls(r["waiting"]["calls"])
        ),
        "the same, while all versions are served": lambda r: calls(r["serving"]["calls"]),
        "calls of a gateway for each version that begins to be served": lambda r: calls(
            {name: count for name, count in r["calls_of_start"].items() if name not in _ALWAYS}
        ),
        "one version changes: rebuilt, in all gateways": lambda r: ", ".join(f"`{url}`" for url in r["rebuilt"]),
        "one version changes: calls of a gateway to all Tritons": lambda r: calls(
            {name: count for name, count in r["calls_of_change"].items() if name not in _ALWAYS}
        ),
        "one version changes: reads of the serving Task and of models' records, by a gateway": lambda r: calls(
            {name: count for name, count in r["registry_of_change"].items() if name in ("task", "records")}
        ),
        "memory per version, and what the first one needs": lambda r: f"{r['bytes_per_version'] / 1e3:.0f} KB",
        "memory of a gateway that serves all": lambda r: f"{r['mb_per_gateway']} MB",
    }  # fmt: skip
    return table([["", *map(size, runs)], *([what, *map(cell, runs)] for what, cell in rows.items())])


class _Registry(FakeRegistry):
    """The registry that all gateways follow; counts its calls."""

    def __init__(self, folder: Path, given: Any) -> None:
        super().__init__()
        bundle = folder / "bundle.zip"
        self.asked: Counter[str] = Counter()
        self.edits = 0
        self.ledger = _Ledger(self.asked)
        for number in range(given.endpoints):
            for version in range(1, given.versions + 1):
                model_id = f"m{number}-{version}"
                own = folder / f"{model_id}.zip"
                if not own.exists():
                    own.hardlink_to(bundle)
                self.add_model(model_id, own, is_package=True)
                self.add_endpoint(f"e{number}", model_id, version=str(version))

    def change(self) -> None:
        """Give one endpoint an option, which makes a new version of it."""
        self.edits += 1
        self.add_endpoint("e0", "m0-1", version="1", auxiliary_cfg={"gateway": {"max_length": "16"}})

    def loaded(self) -> list[str]:
        """Return the model names that Triton has loaded."""
        specs = decode(self.task()).endpoints.values()
        return [
            triton_model_name(spec, decode_model(super(_Registry, self).model(spec.model_id or ""))) for spec in specs
        ]

    def marker(self) -> str:
        """See ``Registry.marker``; as cheap as the real one."""
        self.asked["marker"] += 1
        return str(self.edits)

    def task(self) -> Mapping[str, Any]:
        """See ``Registry.task``."""
        self.asked["task"] += 1
        return super().task()

    def records(self, model_ids: Collection[str]) -> Mapping[str, Mapping[str, Any]]:
        """See ``Registry.records``."""
        self.asked["records"] += 1
        return super().records(model_ids)


class _Ledger(FakeLedger):
    """As ``_Registry``."""

    def __init__(self, asked: Counter[str]) -> None:
        super().__init__()
        self._asked = asked

    def read(self) -> Records:
        """See ``Ledger.read``."""
        self._asked["ledger.read"] += 1
        return super().read()

    def write(self, records: Iterable[Record]) -> None:
        """See ``Ledger.write``."""
        self._asked["ledger.write"] += 1
        super().write(records)


async def _measure(given: Any) -> dict[str, Any]:
    with contextlib.ExitStack() as stack:
        folder = Path(tempfile.mkdtemp(prefix="endpoints-", dir=_MEMORY if _MEMORY.is_dir() else None))
        stack.callback(shutil.rmtree, folder, ignore_errors=True)
        bundle = counting_bundle(folder / "model")
        shutil.make_archive(str(folder / "bundle"), "zip", bundle)
        registry = _Registry(folder, given)
        tritons: Sequence[StandIn | Door]
        if given.real:
            real = Triton(Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="triton-"))))
            stack.callback(real.stop)
            real.start()
            tritons = [Door(real.grpc)]
            as_it_is = Backend("counting", TOKENS, "logits", 2, is_real=True)

            async def load(name: str) -> None:
                await asyncio.to_thread(real.serve, name, as_it_is, bundle)
        else:
            fake = FakeBackend()
            tritons = [StandIn(fake) for _ in range(given.tritons)]

            async def load(name: str) -> None:
                fake.add(name, dict.fromkeys(TOKENS, "int64"), {"logits": "float32"}, _classify)

        for one in tritons:
            await one.start()
        address = "ipv4:" + ",".join(one.address for one in tritons)
        try:
            with _children(given, folder, address) as children:
                return await _watched(given, registry, load, tritons, children)
        finally:
            for one in tritons:
                await one.stop()


@contextlib.contextmanager
def _children(given: Any, folder: Path, address: str) -> Iterator[list[Child]]:
    size = [f"--{name}={getattr(given, name)}" for name in ("endpoints", "versions")]
    children: list[Child] = []
    try:
        for n in range(given.gateways):
            (folder / f"gateway-{n}").mkdir()
            children.append(
                Child(again(__name__, *size, f"--follow={folder / f'gateway-{n}'}", f"--address={address}"))
            )
        yield children
    finally:
        for child in children:
            child.stop()


async def _watched(
    given: Any,
    registry: _Registry,
    load: Callable[[str], Awaitable[None]],
    tritons: Sequence[StandIn | Door],
    children: Sequence[Child],
) -> dict[str, Any]:
    versions = given.endpoints * given.versions
    empty = await _all(children, "facts")
    await _all(children, "start")
    await _until(children, lambda facts: facts["pending"] == versions)
    await asyncio.sleep(2 * given.seconds)
    waiting = await _rates(children, tritons, given)

    booted = _asked(tritons)
    began = time.perf_counter()
    for name in registry.loaded():
        await load(name)
    await _until(children, lambda facts: facts["served"] == versions)
    until_served = time.perf_counter() - began
    asked = _asked(tritons)
    await asyncio.sleep(given.seconds)
    after = await _all(children, "facts")
    serving = await _rates(children, tritons, given)

    calls, began = _asked(tritons), time.perf_counter()
    unchanged = await _all(children, "facts")
    loaded = set(registry.loaded())
    registry.change()
    for name in set(registry.loaded()) - loaded:
        await load(name)
    await _all(children, "change")
    await _until(children, lambda facts: bool(facts["changed"]))
    until_changed = time.perf_counter() - began
    await asyncio.sleep(given.seconds)
    changed = await _all(children, "facts")
    return {
        "endpoints": given.endpoints, "versions": given.versions, "gateways": given.gateways,
        "tritons": "real" if given.real else given.tritons, "waiting": waiting, "serving": serving,
        "all_served_s": round(until_served, 1), "one_changed_s": round(until_changed, 1),
        "rebuilt": sorted({url for one in changed for url in one["changed"]}),
        "calls_of_start": _each(asked - booted, given, versions),
        "calls_of_change": _each(_asked(tritons) - calls, given, 1),
        "cpu_of_start_s": _middle(after, empty, "cpu_s"), "registry_of_start": _registry(after, empty),
        "cpu_of_change_s": _middle(changed, unchanged, "cpu_s"),
        "registry_of_change": _registry(changed, unchanged),
        "bytes_per_version": round(_middle(after, empty, "rss") / versions),
        "mb_per_gateway": round(median(one["rss"] for one in after) / 1e6),
    }  # fmt: skip


async def _all(children: Sequence[Child], question: str) -> list[Any]:
    return await asyncio.gather(*(asyncio.to_thread(child.ask, question) for child in children))


async def _until(children: Sequence[Child], holds: Any) -> None:
    async with asyncio.timeout(_WITHIN_S):
        while not all(map(holds, await _all(children, "facts"))):  # noqa: ASYNC110 - facts of other processes
            await asyncio.sleep(0.5)


def _classify(inputs: dict[str, Any]) -> dict[str, Any]:
    return {"logits": np.zeros((len(inputs["input_ids"]), 2), np.float32)}


def _asked(tritons: Sequence[StandIn | Door]) -> Counter[str]:
    return sum((one.asked for one in tritons), Counter())


def _each(made: Counter[str], given: Any, parts: int) -> dict[str, float]:
    """Return calls to all Tritons from one gateway, by method, divided by ``parts``."""
    return {name: round(count / given.gateways / parts, 3) for name, count in sorted(made.items())}


def _middle(after: Sequence[Any], before: Sequence[Any], name: str) -> float:
    return round(median(late[name] - early[name] for late, early in zip(after, before, strict=True)), 3)


def _registry(after: Sequence[Any], before: Sequence[Any]) -> dict[str, float]:
    """Return one gateway's calls to the registry."""
    made = [Counter(late["registry"]) - Counter(early["registry"]) for late, early in zip(after, before, strict=True)]
    return {name: median(one[name] for one in made) for name in sorted(set().union(*made))}


async def _rates(children: Sequence[Child], tritons: Sequence[StandIn | Door], given: Any) -> dict[str, Any]:
    """Return calls per second to one Triton from one gateway, by method, and the gateway's share of a core."""
    asked, before, began = _asked(tritons), await _all(children, "facts"), time.perf_counter()
    await asyncio.sleep(given.seconds)
    after, seconds = await _all(children, "facts"), time.perf_counter() - began
    made = _asked(tritons) - asked
    return {
        "calls": {name: round(n / seconds / len(tritons) / given.gateways, 2) for name, n in sorted(made.items())},
        "cpu": round(_middle(after, before, "cpu_s") / seconds, 4),
        "registry": {name: round(n / seconds, 2) for name, n in _registry(after, before).items()},
    }  # fmt: skip


async def _follow(folder: Path, given: Any) -> None:
    """Run one gateway: answer lines on stdin until it is closed."""
    registry = _Registry(folder.parent, given)
    settings = Settings(state_dir=folder, poll_frequency="1s", ready_timeout=_WITHIN_S, triton_grpc=given.address)
    gateway = Gateway(
        settings, registry=registry, make_backend=lambda to, _: TritonBackend(to), is_whole_process=True
    )  # fmt: skip
    async with contextlib.AsyncExitStack() as running:
        served: dict[str, Any] = {}
        while line := await asyncio.to_thread(sys.stdin.readline):
            question, told = json.loads(line), None
            if question == "start":
                await running.enter_async_context(gateway.running())
            elif question == "change":
                served = dict(gateway.table.current.endpoints)
                registry.change()
            else:
                now, process = gateway.table.current, psutil.Process()
                cpu = process.cpu_times()
                told = {
                    "pending": len(now.pending), "served": len(now.endpoints), "rss": process.memory_info().rss,
                    "cpu_s": cpu.user + cpu.system, "registry": registry.asked,
                    "changed": [url for url, one in served.items() if now.endpoints.get(url) is not one],
                }  # fmt: skip
            sys.stdout.write(json.dumps(told) + "\n")
            sys.stdout.flush()

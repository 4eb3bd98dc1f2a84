"""Bundles behind a gateway on a real port and the real Triton, as registered models without code."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gateway.app import Gateway
from gateway.settings import Settings
from gateway.spec import decode, triton_model_name
from gateway.triton.backend import TritonBackend
from tests.core_client import listening
from tests.fakes import FakeRegistry
from tests.waiting import LIMIT_S


@dataclass
class Running:
    """``url`` ends in ``/serve/``; ``triton_names`` by endpoint."""

    url: str
    gateway: Gateway
    backend: TritonBackend
    triton_names: Mapping[str, str]


@asynccontextmanager
async def serving(
    folder: Path,
    embedded_triton: Any,
    bundles: Mapping[str, tuple[Path, Mapping[str, str]]],
    fields: Mapping[str, Mapping[str, Any]] | None = None,
) -> AsyncIterator[Running]:
    """Serve each endpoint's bundle with its options (``--aux-config gateway.NAME=VALUE``), or with all the ``fields``
    that ClearML holds of it.
    """
    registry = FakeRegistry()
    names = {}
    for endpoint, (bundle, options) in bundles.items():
        archive = Path(shutil.make_archive(str(folder / endpoint), "zip", bundle))
        registry.add_model(endpoint, archive, is_package=True)
        own = {"auxiliary_cfg": {"gateway": dict(options)}} if options else {}
        registry.add_endpoint(endpoint, endpoint, **(fields or {}).get(endpoint, own))
        spec = decode(registry.task()).endpoints[endpoint]
        name = triton_model_name(spec, registry.model(endpoint))
        names[endpoint] = embedded_triton.serve(bundle, name=name, endpoint=spec)
    backend = TritonBackend(embedded_triton.grpc)
    settings = Settings(
        state_dir=folder / "state", poll_frequency="50ms", ready_timeout=LIMIT_S, request_timeout=LIMIT_S,
        triton_grpc="x:1",
    )  # fmt: skip
    gateway = Gateway(settings, registry=registry, make_backend=lambda *_: backend)
    try:
        async with gateway.running(), listening(gateway) as port, asyncio.timeout(LIMIT_S):
            while not set(bundles) <= set(gateway.table.current.endpoints):
                pending = gateway.table.current.pending
                assert not [p.reason for p in pending.values() if p.state in ("refused", "failed")], pending
                await asyncio.sleep(0.05)
            yield Running(f"http://127.0.0.1:{port}/serve/", gateway, backend, names)
    finally:
        for name in names.values():
            embedded_triton.withdraw(name)

"""A complete gateway over fakes: real tokenizer, batcher and HTTP edge; registry and backend in memory."""

from __future__ import annotations

import asyncio
import hashlib
import shutil
import zipfile
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

from gateway.app import Gateway
from gateway.settings import Settings
from gateway.spec import decode, triton_model_name
from tests.core_client import CoreTransport
from tests.fakes import FakeBackend, FakeRegistry
from tests.unit.gateway.story import serve
from tests.waiting import LIMIT_S, soon
from tests.words import text_bundle


def classify(inputs: dict[str, Any]) -> dict[str, Any]:
    """A model whose logits are the counts of 'bad' and of 'good' in each row."""
    ids = inputs["input_ids"] * inputs["attention_mask"]
    return {"logits": np.stack([(ids == 5).sum(1), (ids == 4).sum(1)], axis=1).astype(np.float32)}


def answering(expression: str) -> str:
    """The source of a class that answers with an expression of its ``body``."""
    return f"class Preprocess:\n    def process(self, body, state, collect=None):\n        return {expression}\n"


class Stack:
    """A gateway over a fake registry and a fake backend, and a client for it."""

    def __init__(self, folder: Path, code_engine: str = "triton", **settings: Any) -> None:
        self.folder = folder
        # a process per class would make this suite slow; test_processes.py is about those
        self.code_engine = code_engine
        self.registry = FakeRegistry()
        self.backend = FakeBackend()
        self.backends: dict[str, FakeBackend] = {}
        self.settings = Settings(
            state_dir=folder / "state",
            poll_frequency="20ms",
            triton_grpc="fake:8001",
            **{"ready_timeout": LIMIT_S, **settings},
        )
        self.gateway = self.new_gateway()
        self.client = self.new_client(self.gateway)

    def new_gateway(self, **more: Any) -> Gateway:
        return Gateway(
            self.settings, registry=self.registry,
            make_backend=lambda address: self.backends.get(address, self.backend),
            records_period=0.05, **more,
        )  # fmt: skip

    def new_client(self, gateway: Gateway) -> httpx.AsyncClient:
        return httpx.AsyncClient(transport=CoreTransport(gateway), base_url="http://gateway", timeout=LIMIT_S)

    def add_text_model(self, model_id: str) -> None:
        bundle = text_bundle(self.folder / f"bundle-{model_id}", max_position_embeddings=32)
        self.add_package(model_id, bundle)

    def add_package(self, model_id: str, bundle: Path) -> None:
        archive = self.folder / f"{model_id}.zip"
        with zipfile.ZipFile(archive, "w") as packed:
            for file in bundle.iterdir():
                packed.write(file, file.name)
        shutil.rmtree(bundle)
        self.registry.add_model(model_id, archive, is_package=True)

    def triton_name(self, url: str) -> str:
        spec = decode(self.registry.task()).endpoints[url]
        assert spec.model_id is not None
        return triton_model_name(spec, self.registry.model(spec.model_id))

    def load(self, url: str, run: Callable[..., Any] = classify) -> None:
        """Load the model of a configured endpoint in the backend, as model sync does."""
        self.backend.add(
            self.triton_name(url), {"input_ids": "int64", "attention_mask": "int64"}, {"logits": "float32"}, run
        )

    def deploy(self, url: str, model_id: str = "m1", **fields: Any) -> None:
        """Register, configure and load a text endpoint."""
        if model_id not in self.registry.models:
            self.add_text_model(model_id)
        self.registry.add_endpoint(url, model_id, **fields)
        version = fields.get("version", "")
        self.load(f"{url}/{version}" if version else url)

    def add_hook(self, url: str, source: str, model_id: str | None = None, engine: str = "", **fields: Any) -> None:
        """Configure an endpoint with preprocess code, by default for the stack's ``code_engine``.

        If that is triton, the class runs in threads. It must have ``process``, so that its model is never called.
        """
        auxiliary = {"gateway": fields.pop("options", {})}
        is_alone = not engine and self.code_engine == "triton"
        if is_alone and model_id is None:
            model_id = "code"
            weights = self.folder / "code.onnx"
            weights.write_bytes(b"x")
            self.registry.add_model(model_id, weights)
        path = self.folder / f"code-{hashlib.sha256(source.encode()).hexdigest()[:8]}.py"
        path.write_text(source)
        key = f"py_code_{url}"
        self.registry.add_artifact(key, path, sha256=hashlib.sha256(path.read_bytes()).hexdigest())
        self.registry.add_endpoint(
            url, model_id, engine=engine or self.code_engine, preprocess_artifact=key, auxiliary_cfg=auxiliary, **fields
        )
        if is_alone:
            version = fields.get("version", "")
            self.backend.add(self.triton_name(f"{url}/{version}" if version else url), {}, {}, lambda inputs: inputs)

    async def until(self, condition: Callable[[], bool]) -> None:
        """Wait for the control loop."""
        await soon(condition)

    async def served(self, *urls: str) -> None:
        """Wait until exactly these urls are served and nothing is being built."""
        await self.until(
            lambda: (
                set(self.gateway.table.current.endpoints) == set(urls)
                and not any(p.state == "pending" for p in self.gateway.table.current.pending.values())
            )
        )

    def state(self, url: str) -> tuple[str, str]:
        """Return the state and the reason of a url that is not served or has a successor."""
        pending = self.gateway.table.current.pending.get(url)
        return (pending.state, pending.reason) if pending else ("", "")


@asynccontextmanager
async def starting(gateway: Any) -> AsyncIterator[None]:
    """A gateway from its first moment, without the wait before it listens."""
    running = gateway.running()
    start = asyncio.create_task(running.__aenter__())
    try:
        yield
    finally:
        await start
        await running.__aexit__(None, None, None)


@pytest.fixture
def make_stack(tmp_path: Path) -> Callable[..., Stack]:
    """Make a stack that is not started."""
    return lambda **settings: Stack(tmp_path, **settings)


@pytest.fixture
async def stack(tmp_path: Path) -> AsyncIterator[Stack]:
    """A running stack with nothing deployed."""
    stack = Stack(tmp_path)
    async with stack.gateway.running(), stack.client:
        yield stack


@pytest.fixture
async def served(stack: Stack) -> Stack:
    """The same, with one text classifier, ``e``."""
    stack.deploy("e")
    await stack.served("e")
    return stack


@pytest.fixture
async def story(stack: Stack) -> Stack:
    """The same, with a generative model as ``story``."""
    await serve(stack)
    return stack

"""Slow work of control (downloads, the registry) delays neither requests nor other kinds of its work."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from gateway.control import reconcile
from gateway.metrics import catalog
from gateway.registry.port import Parts
from tests.fakes import FakeRegistry
from tests.waiting import LIMIT_S

LONG = {"text": "good film " * 4000}
"""More than is tokenized on the event loop."""


class HangingRegistry(FakeRegistry):
    """A registry whose downloads or looks hang until ``is_over`` is set."""

    def __init__(self) -> None:
        super().__init__()
        self.is_over = threading.Event()
        self.hangs: set[str] = set()
        self.hanging: list[threading.Thread] = []

    def _hang(self) -> None:
        self.hanging.append(threading.current_thread())
        self.is_over.wait(LIMIT_S)

    def parts(self, uri: str) -> Parts | None:
        if any(name in uri for name in self.hangs):
            self._hang()
        return super().parts(uri)

    def marker(self) -> str:
        if "marker" in self.hangs:
            self._hang()
        return super().marker()


@contextlib.contextmanager
def hanging(make_stack: Callable[..., Any], **settings: Any) -> Iterator[tuple[Any, HangingRegistry]]:
    """Yield a stack over such a registry; everything that hangs continues at the end."""
    stack = make_stack(**settings)
    registry = stack.registry = HangingRegistry()
    stack.gateway = stack.new_gateway()
    stack.client = stack.new_client(stack.gateway)
    try:
        yield stack, registry
    finally:
        registry.is_over.set()


async def test_eight_hanging_downloads_delay_neither_requests_nor_builds(make_stack: Callable[..., Any]) -> None:
    """Neither a request that is handled in a thread nor a version whose files are cached waits for them."""
    with hanging(make_stack) as (stack, registry):
        async with stack.gateway.running(), stack.client:
            stack.deploy("e")
            await stack.served("e")
            for number in range(8):
                registry.hangs.add(f"slow{number}.")
                stack.add_text_model(f"slow{number}")
                registry.add_endpoint(f"s{number}", f"slow{number}")
            await stack.until(lambda: len(registry.hanging) == 8)
            async with asyncio.timeout(LIMIT_S):
                assert 200 == (await stack.client.post("/serve/e", json=LONG)).status_code
            stack.deploy("again", "m1")
            await stack.until(lambda: "again" in stack.gateway.table.current.endpoints)
            assert 8 == len(registry.hanging)
            registry.is_over.set()


async def test_a_registry_that_hangs_holds_up_nothing_but_looking_at_it(
    make_stack: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """However many looks were given up: their threads are no others' threads."""
    with hanging(make_stack) as (stack, registry):
        async with stack.gateway.running(), stack.client:
            stack.deploy("e")
            await stack.served("e")
            monkeypatch.setattr(reconcile, "_LOOK_TIMEOUT_S", 0.05)
            registry.hangs.add("marker")
            follower, looks = stack.gateway._reconciler, []
            monkeypatch.setattr(
                stack.gateway.observer,
                "count",
                lambda metric, *_: looks.append(metric) if metric is catalog.RECONCILES else None,
            )
            await stack.until(lambda: len(looks) >= 5)
            saved = stack.settings.state_dir / "gateway" / "last-good.json"
            await stack.until(saved.is_file)
            saved.unlink()
            monkeypatch.setattr(follower._store, "_saved", None)
            await stack.until(saved.is_file)
            registry.is_over.set()

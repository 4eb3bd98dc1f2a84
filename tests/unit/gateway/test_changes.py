"""A change of the configuration delays no request: its threads, its frequency, and its number of calls."""

from __future__ import annotations

import gc
import threading
import weakref
from collections.abc import Callable
from typing import Any

import pytest

from gateway.control import reconcile
from gateway.registry import SpecStore
from tests.fakes import FakeRegistry


async def test_a_change_is_read_compiled_and_saved_in_control_threads(
    make_stack: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not on the event loop, and not in a thread that prepares requests. All models' records are read in one call."""
    threads: dict[str, set[str]] = {}
    for owner, name in (
        (reconcile, "decode"), (reconcile, "compile_spec"), (SpecStore, "save"), (FakeRegistry, "records"),
        (FakeRegistry, "model"),
    ):  # fmt: skip
        original = getattr(owner, name)

        def noted(*args: Any, called: Any = original, name: str = name, **named: Any) -> Any:
            threads.setdefault(name, set()).add(threading.current_thread().name.split("_")[0])
            return called(*args, **named)

        monkeypatch.setattr(owner, name, noted)
    stack = make_stack()
    stack.deploy("e")
    async with stack.gateway.running():
        await stack.until(lambda: {"e"} == stack.gateway.table.current.endpoints.keys() and "save" in threads)
    local = {name: {"control"} for name in ("decode", "compile_spec", "save")}
    assert {**local, "records": {"registry"}, "model": {"MainThread"}} == threads  # the main thread is the test's


HOOK = "class Preprocess:\n    def process(self, data, state, collect):\n        return {'n': %d}\n"


async def test_replaced_endpoints_are_freed_without_garbage_collection(stack: Any) -> None:
    """What serves at the start is excluded from collection, so a reference cycle would stay for ever."""
    stack.deploy("text", "m1")
    stack.deploy("tensors", "m1", auxiliary_cfg={"gateway": {"task": "tensors"}})
    stack.add_hook("code", HOOK % 1)
    stack.add_hook("front", HOOK % 1, "m1", engine="triton")
    stack.load("front")
    urls = ("text", "tensors", "code", "front")
    await stack.served(*urls)
    for url in urls:
        await stack.client.post(f"/serve/{url}", json={"text": "good"})
    served = stack.gateway.table.current.endpoints
    kinds = {type(one.handler).__name__ for one in served.values()}
    assert len(kinds) >= 3, kinds
    gc.collect()
    gc.disable()
    try:
        before = {url: weakref.ref(served[url].handler) for url in urls}
        del served
        stack.deploy("text", "m2")
        stack.deploy("tensors", "m2", auxiliary_cfg={"gateway": {"task": "tensors"}})
        stack.add_hook("code", HOOK % 2)
        stack.add_hook("front", HOOK % 2, "m2", engine="triton")
        stack.load("front")
        await stack.until(lambda: all(one() is None for one in before.values()))
    finally:
        gc.enable()

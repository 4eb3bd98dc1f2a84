"""Building endpoints with code: a build that fails or is cancelled stops the processes that it started."""

from __future__ import annotations

import asyncio
import os
from typing import Any

import psutil
import pytest

from gateway.control import validate
from tests.waiting import LIMIT_S

HOOK = "class Preprocess:\n    def process(self, body, state, s=None):\n        return {}\n"


def hook_processes() -> list[int]:
    """Return the ids of the running hook processes of this process."""
    found = [one.info for one in psutil.process_iter(["pid", "ppid", "cmdline"]) if one.info["ppid"] == os.getpid()]
    return [one["pid"] for one in found if "gateway.hooks.child" in " ".join(one["cmdline"] or ())]


async def test_a_build_that_is_cancelled_after_its_code_was_started_leaves_no_process(
    make_stack: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The endpoint is removed while it is being built."""
    reached = asyncio.Event()

    async def waits(*_: Any, **__: Any) -> dict[str, object]:
        reached.set()
        await asyncio.Event().wait()
        return {}

    monkeypatch.setattr(validate, "warm_up", waits)
    stack = make_stack(code_engine="custom")
    async with stack.gateway.running(), stack.client:
        stack.add_hook("h", HOOK)
        async with asyncio.timeout(LIMIT_S):
            await reached.wait()
        assert hook_processes()
        del stack.registry.endpoints["h"]
        await stack.until(lambda: not hook_processes())

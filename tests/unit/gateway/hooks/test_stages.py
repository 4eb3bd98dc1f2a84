"""Stages over several requests: batched if the class supports it, with separate failures."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from gateway.hooks.stages import Job, run_stage
from preprocessing.user_code import UserCode

SOURCE = """
class Preprocess:
    def __init__(self):
        self.calls = []
    def process_batch(self, data, states):
        self.calls.append(len(data))
        if any(d == "poison" for d in data):
            raise RuntimeError("boom")
        return [ValueError("refused") if d == "bad" else d + "!" for d in data]
"""


async def call(hook: Any, is_async: bool, *arguments: Any) -> Any:
    """Call the hook directly."""
    return await hook(*arguments) if is_async else hook(*arguments)


async def answers(code: UserCode, data: Sequence[str]) -> list[str]:
    """Return the result or the error of each request."""
    jobs = [Job(d) for d in data]
    await run_stage(code, "process", jobs, call)
    return [type(j.error).__name__ if j.error else j.data for j in jobs]


@given(st.lists(st.sampled_from(["a", "b", "bad", "poison"]), min_size=1, max_size=8))
def test_a_requests_result_does_not_depend_on_its_batch(data: list[str]) -> None:
    """For any batch and any failures in it."""
    import asyncio
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "preprocess.py"
        path.write_text(SOURCE)
        code = UserCode.load(path, name="t", endpoint=None, send_request=lambda *_: None)
        together = asyncio.run(answers(code, data))
        assert [asyncio.run(answers(code, [d]))[0] for d in data] == together

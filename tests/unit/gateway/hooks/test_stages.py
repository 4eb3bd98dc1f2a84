"""Stages over several requests: batched if the class supports it, with separate failures."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
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


@pytest.fixture
def code(tmp_path: Path) -> UserCode:
    """The class above."""
    path = tmp_path / "preprocess.py"
    path.write_text(SOURCE)
    return UserCode.load(path, name="t", endpoint=None, send_request=lambda *_: None)


async def test_requests_share_one_call_of_a_batch_hook(code: UserCode) -> None:
    """An exception in the returned list fails only its own request."""
    assert ["a!", "UserCodeRefused", "b!"] == await answers(code, ["a", "bad", "b"])
    assert [3] == code.instance.calls  # type: ignore[attr-defined]


async def test_only_the_request_at_fault_fails_if_the_batch_fails(code: UserCode) -> None:
    """The others are tried again in smaller batches."""
    assert ["a!", "UserCodeFailed", "b!"] == await answers(code, ["a", "poison", "b"])


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

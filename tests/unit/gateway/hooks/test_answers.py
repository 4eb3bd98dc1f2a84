"""The gateway checks what a hook process sends before it uses it. A hook may return its own response."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.errors import HookFailed
from gateway.hooks.answers import HookResponse
from gateway.hooks.process import HookProcess, PendingCall
from gateway.hooks.wire import FrameReader, pack

OWNER: Any = SimpleNamespace(
    name="h", is_async=False, dispatch_waiting=lambda: None, process_ended=lambda *_: None, answer_call=lambda *_: None
)
"""A pool that does nothing; see ``process.Owner``."""


def process_with_call() -> tuple[HookProcess, PendingCall]:
    """A process object without a program, with a request under the number 1."""
    process = HookProcess(OWNER)
    process.slots = 1
    loop = asyncio.get_running_loop()
    pending = PendingCall(b"", False, loop.time() + 60, loop.create_future())
    process.send(pending, loop.time() + 60)
    return process, pending


def answer(kind: object, payload: bytes = b"", **head: Any) -> bytes:
    """Return a frame with an answer."""
    return pack({"k": "done", "id": 1, "ns": [1, 2, 3], "is": kind, "statistics": {}, **head}, payload)


WHOLE = (
    answer("json", b"[1]"), answer("json", b"{}", spoiled="it is"), answer("bytes", b"raw", statistics={"x": 1}),
    answer("response", b"body", status=201, headers=[["x-a", "b"]]),
    answer("failed", message="m", hint="h"), answer("refused", message="no", hint=""),
)  # fmt: skip
WRONG = (
    answer("json"), answer("json", b"{"), answer("json", b"[" * 5000),
    answer("json", b"1", ns=[1, 2]), answer("json", b"1", ns=[1, 2, -3]), answer("json", b"1", ns=None),
    answer("json", b"1", statistics=None), answer("json", b"1", statistics=[]), answer("run"), answer(1), answer(None),
    answer("json", b"1", id=2), answer("json", b"1", id=None), answer("json", b"1", id=[1]),
    answer("failed", message=1, hint=""), answer("refused", message="no"), answer("response", b"", status=200),
    answer("response", b"", status=200, headers=[["x-a"]]), answer("response", b"", status=200, headers=[["x", 1]]),
    answer("response", b"", status=200, headers=[["x-\u20ac", "b"]]), pack({"k": "call", "id": 1}),
    pack({"k": "call", "id": "x", "endpoint": 1}), pack({"id": 1}), pack({"k": "done"}),
    pack({"k": "done", "id": 1, "broken": {"a": 1}}),
    # lengths for which the reader does not wait, and heads that are no objects
    *(lengths + b"\0" * 8 for lengths in (b"\xff" * 8, b"\0\0\0\0\xff\xff\xff\x7f", b"\xff\xff\xff\x7f\0\0\0\0")),
    *(len(head).to_bytes(4, "little") + b"\0\0\0\0" + head for head in (b"[]", b"null", b"{", b"\xff", b"[" * 2000)),
)  # fmt: skip


@given(
    st.lists(st.tuples(st.dictionaries(st.text(max_size=5), st.integers(-9, 9), max_size=3), st.binary()), max_size=5),
    st.integers(1, 40),
)
def test_frames_are_read_from_any_pieces_of_the_stream(frames: list[tuple[dict[str, int], bytes]], step: int) -> None:
    """The stream may be cut anywhere."""
    stream = b"".join(pack(head, payload) for head, payload in frames)
    reader = FrameReader()
    found = [f for i in range(0, len(stream), step) for f in reader.feed(stream[i : i + step])]
    assert frames == found


@pytest.mark.parametrize("frame", WHOLE)
async def test_a_correct_answer_is_accepted(frame: bytes) -> None:
    """The forged answers below differ from it."""
    process, pending = process_with_call()
    process.data_received(frame)
    assert (1, 2, 3) == pending.answer.result().stage_ns
    assert "" == process.kill_reason


@pytest.mark.parametrize("frame", WRONG)
async def test_an_invalid_answer_ends_the_process_and_fails_the_request(frame: bytes) -> None:
    """The error says so. Nothing else happens to the gateway."""
    process, pending = process_with_call()
    process.data_received(frame)
    assert process.kill_reason.startswith("it sent something that is not a frame")
    process._end()
    assert isinstance(pending.answer.exception(), HookFailed)


@pytest.mark.parametrize(
    ("status", "headers", "said"),
    [
        (200, [(b"x-a", b"b\r\nset-cookie: stolen=1")], "line breaks"), (200, [(b"x-a", b"b\nc")], "line breaks"),
        (200, [(b"x-a", b"b\0")], "control"), (200, [(b"x-a\r\nx-b", b"c")], "header"),
        (200, [(b"x a", b"c")], "header"), (200, [(b"", b"c")], "header"),
        (200, [(b"Transfer-Encoding", b"chunked")], "Transfer-Encoding"),
        (200, [(b"x-a", b"b")] * 200, "200 headers"), (200, [(b"x-a", b"b" * 100_000)], "headers"),
        (99, [], "status"), (600, [], "status"), (True, [], "status"), (204, [], "204 has no body"),
    ],
)  # fmt: skip
def test_an_invalid_response_is_the_hooks_failure(status: Any, headers: list[tuple[bytes, bytes]], said: str) -> None:
    """A header with a line break could start a second response."""
    with pytest.raises(HookFailed) as failed:
        HookResponse.checked(b"body", status, headers)
    assert said in f"{failed.value.message} {failed.value.hint}"


def test_a_valid_response_is_sent() -> None:
    """The transport sets the content length."""
    found = HookResponse.checked(b"body", 418, [(b"Content-Length", b"999"), (b"x-a", b"caf\xe9\t1")])
    assert (b"body", 418, [(b"x-a", b"caf\xe9\t1")]) == (found.body, found.status_code, found.raw_headers)

"""Queues a sample of answered requests; a thread of its own writes their requests and answers.

The data plane calls ``answered``, which decides at random whether a request is logged, and appends it to a bounded
queue. A few times a second the queue goes to the thread, which converts records to JSON without the fields to drop and
writes them to files. If the queue is full, records are dropped and counted. Only answered requests are logged: no
shadow requests, no validation requests.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import logging
import random
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from typing import Any, Final, NamedTuple

import orjson

from gateway.callers.rights import Caller, matches
from gateway.handlers.cache import size_of
from gateway.handlers.endpoint import Event, Lookup
from gateway.handlers.tensors import RawTensors
from gateway.hooks.answers import HookResponse
from gateway.hooks.json_form import to_json
from gateway.payloads.files import NOT_JSON, QUEUE_FULL, TOO_LARGE, WRITTEN, Folder
from gateway.settings import Settings
from gateway.trace import Trace
from preprocessing.types import Prepared

_log = logging.getLogger("triton_gateway.payloads")

_SETTING: Final = "TRITON_GATEWAY_PAYLOAD_LOG"

_MAX_QUEUED: Final = 2000
_MAX_QUEUED_BYTES: Final = 16 << 20
"""Size of all queued requests and answers."""
_MAX_RECORD_BYTES: Final = 1 << 20
_WRITE_PERIOD_S: Final = 0.2
_CLOSE_S: Final = 5.0
"""Seconds in which the queue must be written when the gateway stops."""
_WARNING_PERIOD_S: Final = 60.0

Count = Callable[[str, int], None]
"""``count(outcome, records)``, called on the event loop."""
Shares = tuple[tuple[str, float], ...]
"""Patterns of endpoints, each with the share of their requests that is logged, from 0 to 1; the first match counts."""


def shares(text: str) -> Shares:
    """Parse ``sentiment=0.1 toxic/2=1 *=0.01``. Raises ``ValueError`` with the reason."""
    parsed = []
    for item in text.replace(",", " ").split():
        pattern, _, share = item.rpartition("=")
        try:
            number = float(share)
        except ValueError:
            number = -1.0
        if not pattern.strip("/") or not 0 <= number <= 1:
            raise ValueError(f"{item[:100]!r} is not ENDPOINT=SHARE with a share from 0 to 1: write sentiment=0.1")
        parsed.append((pattern, number))
    return tuple(parsed)


def payload_log(settings: Settings, count: Count) -> PayloadLog | None:
    """Return the payload log that the settings ask for, and make its folder; None if it is off.

    Raises ``ValueError`` with the setting's name.
    """
    try:
        wanted = shares(settings.payload_log)
    except ValueError as error:
        raise ValueError(f"{_SETTING}: {error}") from error
    if not any(share for _, share in wanted):
        return None
    path = settings.state_dir / "payloads"
    try:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise ValueError(f"{_SETTING}: the folder {path} cannot be made: {error.strerror}") from error
    folder = Folder(
        path, max_bytes=settings.payload_log_bytes, keep=settings.payload_log_keep, writers=settings.workers
    )
    dropped = frozenset(name.strip() for name in settings.payload_log_drop.split(",") if name.strip())
    return PayloadLog(folder, wanted, count=count, dropped=dropped)


class _Queued(NamedTuple):
    at: float
    trace: Trace
    size: int


class PayloadLog:
    """Writes samples of answered requests to ``folder``. The event loop calls it, and a thread of its own writes.

    ``dropped``: fields to leave out, of a record at any depth.
    ``random_number()`` returns a number from 0 to 1, ``clock()`` seconds since 1970.
    """

    def __init__(
        self,
        folder: Folder,
        shares: Shares,
        *,
        count: Count,
        dropped: frozenset[str] = frozenset(),
        random_number: Callable[[], float] = random.random,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._folder = folder
        self._shares = shares
        self._count = count
        self._dropped = dropped
        self._random_number = random_number
        self._clock = clock
        self._by_url: dict[str, float] = {}
        self._queue: list[_Queued] = []
        self._held = self._held_bytes = 0
        """Records that are queued or being written, and their size."""
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="payload-log")
        self._problem = ""
        self._warn_again_at = 0.0

    def answered(self, trace: Trace) -> None:
        """Queue a finished request if the random sample has it; never waits."""
        url = trace.url
        share = self._by_url.get(url)
        if share is None:
            if not url:
                return  # it reached no version, so it has no answer
            share = next((share for pattern, share in self._shares if matches(pattern, url)), 0.0)
            self._by_url[url] = share
        if not share or trace.outcome != "ok" or self._random_number() >= share or isinstance(trace.body, Lookup):
            return
        size = trace.body_bytes + size_of(trace.answer) + sum([len(piece.text) for piece in trace.pieces or ()])
        if size > _MAX_RECORD_BYTES:
            self._count(TOO_LARGE, 1)
        elif self._held >= _MAX_QUEUED or self._held_bytes + size > _MAX_QUEUED_BYTES:
            self._count(QUEUE_FULL, 1)
            self._lost(f"the queue is full: {self._folder.path} takes fewer records than come")
        else:
            self._held += 1
            self._held_bytes += size
            self._queue.append(_Queued(self._clock(), trace, size))

    def status(self) -> dict[str, Any]:
        """Return what is logged and where, and why this process has lost records, until it writes one again."""
        return {"to": str(self._folder.path), "shares": dict(self._shares), "problem": self._problem or None}

    async def run(self) -> None:
        """Write what is queued every now and then, until cancelled."""
        while True:
            await asyncio.sleep(_WRITE_PERIOD_S)
            try:
                await self.write()
            except Exception:  # noqa: BLE001 - nothing waits for this task: it must go on, and say what it lost
                _log.exception("payload log: records were lost")

    async def close(self) -> None:
        """Write what is queued within seconds, and stop."""
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self.write(), _CLOSE_S)
        self._thread.shutdown(wait=False)

    async def write(self) -> None:
        """Write what is queued."""
        queued, self._queue = self._queue, []
        written = asyncio.get_running_loop().run_in_executor(self._thread, self._written, queued)
        try:
            outcomes, problem = await written
        finally:
            self._held -= len(queued)
            self._held_bytes -= sum(one.size for one in queued)
        for outcome, records in outcomes.items():
            self._count(outcome, records)
        if WRITTEN in outcomes:
            self._problem = ""
        if problem:
            self._lost(problem)

    def _lost(self, problem: str) -> None:
        self._problem = problem
        now = time.monotonic()
        if now >= self._warn_again_at:
            self._warn_again_at = now + _WARNING_PERIOD_S
            _log.warning("payload log: %s", problem[:500])

    def _written(self, queued: Sequence[_Queued]) -> tuple[Counter[str], str]:
        """In the thread: write records; return how many had which outcome, and why some are lost."""
        outcomes, problem = Counter[str](), ""
        lines: list[bytes] = []
        for one in queued:
            try:
                record = to_json(self._record(one), orjson.OPT_APPEND_NEWLINE)
            except Exception as error:  # noqa: BLE001 - answers may be users' objects, which may raise anything
                outcomes[NOT_JSON] += 1
                problem = f"an answer of {one.trace.url} cannot be written as JSON: {error}"
                continue
            if len(record) > _MAX_RECORD_BYTES:
                outcomes[TOO_LARGE] += 1
            else:
                lines.append(record)
        if lines:
            outcome, reason = self._folder.write(b"".join(lines))
            outcomes[outcome] += len(lines)
            problem = reason or problem
        self._folder.sweep()
        return outcomes, problem

    def _record(self, queued: _Queued) -> Any:
        trace, caller = queued.trace, queued.trace.caller
        record: dict[str, Any] = {
            "time": datetime.fromtimestamp(queued.at, UTC).isoformat(timespec="microseconds").replace("+00:00", "Z"),
            "request_id": trace.request_id, "trace_id": trace.trace_id,
            "url": trace.url, "endpoint": trace.endpoint, "version": trace.version, "model_id": trace.model_id,
            "route": trace.route,
            **({"tenant": caller.tenant, "caller": caller.name} if isinstance(caller, Caller) else {}),
            "total_ms": round(trace.total_ns / 1e6, 3), "tokens": trace.tokens,
            "request": _request(trace.body), "answer": _answer(trace),
        }  # fmt: skip
        return _without(self._dropped, orjson.loads(to_json(record))) if self._dropped else record


def _without(dropped: frozenset[str], value: Any) -> Any:
    """Return a JSON value without the fields to drop."""
    if type(value) is dict:
        return {name: _without(dropped, inner) for name, inner in value.items() if name not in dropped}
    return [_without(dropped, inner) for inner in value] if type(value) is list else value


def _request(question: object) -> object:
    """Return the request as a value with a JSON form."""
    if isinstance(question, bytes | bytearray | memoryview):
        return _text_of(bytes(question))
    if isinstance(question, Prepared):
        return {"token_ids": [row.ids.tolist() for row in question.rows]}
    if isinstance(question, RawTensors):
        return {"inputs": dict(question.inputs)}
    return question


def _answer(trace: Trace) -> object:
    if trace.pieces is not None:
        return _whole(trace.pieces)
    answer = trace.answer
    if isinstance(answer, bytes | bytearray | memoryview):
        return _text_of(bytes(answer))
    if isinstance(answer, HookResponse):
        return {"status": answer.status_code, "body": _text_of(answer.body)}
    return answer


def _whole(pieces: Sequence[Event]) -> Mapping[str, object]:
    """Return a streamed answer in the form that it has if it is not streamed."""
    last = pieces[-1]
    return {
        "text": "".join(piece.text for piece in pieces),
        "finish_reason": last.finish_reason,
        "generated_tokens": last.generated_tokens,
    }


def _text_of(content: bytes) -> str | Mapping[str, str]:
    try:
        return content.decode()
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(content).decode()}

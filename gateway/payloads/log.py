"""Queues a sample of answered requests; a thread of its own writes their requests and answers.

The data plane calls ``answered``, which decides at random whether a request is logged, and appends it to a bounded
queue. The thread converts records to JSON without the fields to drop, and writes them to files. If the queue is full,
records are dropped and counted. Only answered requests are logged: no shadow requests, no validation requests.
"""

from __future__ import annotations

import base64
import contextlib
import logging
import random
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
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
_MAX_WRITE_BYTES: Final = 4 << 20
_WRITE_PERIOD_S: Final = 0.5
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
    """Return the payload log that the settings ask for; None if it is off.

    Raises ``ValueError`` with the setting's name.
    """
    try:
        wanted = shares(settings.payload_log)
    except ValueError as error:
        raise ValueError(f"{_SETTING}: {error}") from error
    if not any(share for _, share in wanted):
        return None
    folder = Folder(
        settings.state_dir / "payloads", max_bytes=settings.payload_log_bytes, keep=settings.payload_log_keep,
        writers=settings.workers,
    )  # fmt: skip
    dropped = frozenset(name.strip() for name in settings.payload_log_drop.split(",") if name.strip())
    return PayloadLog(folder, wanted, count=count, dropped=dropped)


def check(settings: Settings) -> None:
    """Check the settings and create the folder, before any worker starts.

    Raises ``ValueError`` with the setting's name.
    """
    if payload_log(settings, lambda _outcome, _records: None) is None:
        return
    folder = settings.state_dir / "payloads"
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise ValueError(f"{_SETTING}: the folder {folder} cannot be made: {error.strerror}") from error


class _Queued(NamedTuple):
    at: float
    trace: Trace
    size: int


class PayloadLog:
    """Writes samples of answered requests to ``sink``. The event loop calls it; ``start`` starts its thread.

    ``dropped``: fields to leave out, of a record at any depth.
    ``random_number()`` returns a number from 0 to 1, ``clock()`` seconds since 1970.
    """

    def __init__(
        self,
        sink: Folder,
        shares: Shares,
        *,
        count: Count,
        dropped: frozenset[str] = frozenset(),
        random_number: Callable[[], float] = random.random,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._sink = sink
        self._shares = shares
        self._count = count
        self._dropped = dropped
        self._random_number = random_number
        self._clock = clock
        self._run_on_loop: Callable[..., object] = lambda call, *arguments: call(*arguments)
        self._by_url: dict[str, float] = {}
        self._queue: deque[_Queued] = deque()
        # The event loop changes the first, the log's thread the second: `+=` on one number by both would lose updates.
        self._bytes_queued = self._bytes_taken = 0
        self._wake = threading.Event()
        self._is_closing = False
        self._thread: threading.Thread | None = None
        self._problem = ""
        self._warn_again_at = 0.0

    # --- on the event loop --------------------------------------------------------------------------------------------

    def start(self, run_on_loop: Callable[..., object]) -> None:
        """Start the thread. ``run_on_loop(call, *arguments)`` must run a call on the event loop."""
        self._run_on_loop = run_on_loop
        self._thread = threading.Thread(target=self._run, name="payload-log", daemon=True)
        self._thread.start()

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
            self._counted(TOO_LARGE, 1)
        elif len(self._queue) >= _MAX_QUEUED or self._bytes_queued - self._bytes_taken + size > _MAX_QUEUED_BYTES:
            reason = f"the queue is full: {self._sink.path} takes fewer records than come"
            self._warn(reason)
            self._counted(QUEUE_FULL, 1, reason)
        else:
            self._bytes_queued += size
            self._queue.append(_Queued(self._clock(), trace, size))
            if len(self._queue) * 2 == _MAX_QUEUED:  # a slower queue is written when the thread next wakes up
                self._wake.set()

    def status(self) -> dict[str, Any]:
        """Return what is logged and where, and why this process has lost records, until it writes one again."""
        return {"to": str(self._sink.path), "shares": dict(self._shares), "problem": self._problem or None}

    def close(self) -> None:
        """Write the queue within seconds and stop. Call it from a thread that may wait."""
        if self._thread is None:
            return
        self._is_closing = True
        self._wake.set()
        self._thread.join(_CLOSE_S)

    def _counted(self, outcome: str, records: int, problem: str = "") -> None:
        self._problem = "" if outcome == WRITTEN else problem or self._problem
        self._count(outcome, records)

    # --- in the thread ------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            while not self._is_closing:
                self._wake.wait(_WRITE_PERIOD_S)
                self._wake.clear()
                self.write()
                self._sink.idle()
            self.write()
        except Exception:  # noqa: BLE001 - the thread's end must be logged: nothing waits for it
            _log.exception("the payload log ended: nothing is written any more")

    def write(self) -> None:
        """Write the queued records."""
        while encoded := self._next_batch():
            outcome, reason = self._sink.write(b"".join(encoded))
            if reason:
                self._warn(f"{len(encoded)} records were lost: {reason}")
            self._report(outcome, len(encoded), reason)

    def _next_batch(self) -> list[bytes]:
        """Return the next records as lines, as many as are written at once; empty if none is queued."""
        batch: list[bytes] = []
        size = 0
        while self._queue and size < _MAX_WRITE_BYTES:
            queued = self._queue.popleft()
            self._bytes_taken += queued.size
            try:
                record = to_json(self._record(queued), orjson.OPT_APPEND_NEWLINE)
            except Exception as error:  # noqa: BLE001 - answers may be users' objects, which may raise anything
                reason = f"an answer of {queued.trace.url} cannot be written as JSON: {error}"
                self._warn(reason)
                self._report(NOT_JSON, 1, reason)
                continue
            if len(record) > _MAX_RECORD_BYTES:
                self._report(TOO_LARGE, 1)
                continue
            batch.append(record)
            size += len(record)
        return batch

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

    def _report(self, outcome: str, records: int, problem: str = "") -> None:
        with contextlib.suppress(RuntimeError):  # the loop has ended
            self._run_on_loop(self._counted, outcome, records, problem)

    def _warn(self, reason: str) -> None:
        now = time.monotonic()
        if now >= self._warn_again_at:
            self._warn_again_at = now + _WARNING_PERIOD_S
            _log.warning("payload log: %s", reason[:500])


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

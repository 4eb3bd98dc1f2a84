"""Checks the answers of hook processes before they are used: users' code can make a process send anything.

Anything that is not a valid answer raises ``ValueError``, and the process that sent it is ended.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, cast

import orjson

from gateway.errors import GatewayError, HookFailed, InputRefused
from gateway.hooks.wire import Buffer

_MAX_ANSWER: Final = 256 << 20
_MAX_TEXT: Final = 10_000
_MAX_HEADERS: Final = 100
_MAX_HEADER_BYTES: Final = 32 << 10
_NAME: Final = re.compile(rb"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_VALUE: Final = re.compile(rb"[\t\x20-\x7e\x80-\xff]*")
_NOT_THE_HOOKS: Final = frozenset(
    {b"connection", b"keep-alive", b"proxy-connection", b"te", b"trailer", b"transfer-encoding", b"upgrade"}
)
_WITHOUT_BODY: Final = (204, 205, 304)


@dataclass(frozen=True, slots=True)
class HookResponse:
    """A checked response with status and headers that a hook made itself."""

    body: bytes
    status_code: int
    raw_headers: list[tuple[bytes, bytes]]

    @classmethod
    def checked(cls, body: bytes, status: object, headers: Iterable[tuple[bytes, bytes]]) -> HookResponse:
        """Return the response without the headers of the transport. Raises ``HookFailed`` if it cannot be sent."""
        if type(status) is not int or not 200 <= status <= 599:
            raise _unfit(f"status {status!r:.20}", "a status is a number from 200 to 599")
        if body and status in _WITHOUT_BODY:
            raise _unfit(f"status {status} and a body", f"{status} has no body")
        kept = [(name, value) for name, value in headers if bytes(name).lower() != b"content-length"]
        if len(kept) > _MAX_HEADERS or sum(len(n) + len(v) for n, v in kept) > _MAX_HEADER_BYTES:
            raise _unfit(f"{len(kept)} headers", f"{_MAX_HEADERS} headers and {_MAX_HEADER_BYTES >> 10} KiB at most")
        for name, value in kept:
            if not _NAME.fullmatch(name) or name.lower() in _NOT_THE_HOOKS:
                raise _unfit(f"the header {_shown(name)}", "a hook may set headers of its content, and x-… of its own")
            if not _VALUE.fullmatch(value):
                raise _unfit(f"line breaks or control characters in the header {_shown(name)}", "take them out")
        return cls(body, status, kept)

    @classmethod
    def of(cls, answer: object) -> object:
        """Return a hook's answer; a response of its own (Starlette's, for example) as a checked ``HookResponse``.

        Raises ``HookFailed`` if it cannot be sent.
        """
        content, status = getattr(answer, "body", None), getattr(answer, "status_code", None)
        if not isinstance(content, bytes) or not isinstance(status, int) or isinstance(answer, cls):
            return answer
        headers = getattr(answer, "raw_headers", [])
        try:
            pairs = [(bytes(name), bytes(value)) for name, value in headers]
        except (TypeError, ValueError):
            raise _unfit("raw_headers that are no pairs of bytes", "as in Starlette: [(b'x-name', b'value')]") from None
        return cls.checked(content, int(status), pairs)


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result of one request in the process."""

    answer: object
    error: GatewayError | None
    statistics: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class HookReply:
    """The outcomes of one call, and its nanoseconds: waiting, then each stage."""

    outcomes: list[Outcome]
    queue_ns: int
    stage_ns: tuple[int, int, int]


def read_outcomes(head: Mapping[str, Any], payload: Buffer, count: int) -> list[Outcome]:
    """Return the outcomes of ``count`` requests. Raises ``ValueError`` for an invalid answer."""
    jobs = _of(list, head.get("jobs"))
    if len(jobs) != count:
        raise ValueError(f"{len(jobs)} answers to {count} requests")
    parts = _parts(payload, _of(list, head.get("sizes")))
    found = [_outcome(_of(dict, job), parts) for job in jobs]
    if next(parts, None) is not None:
        raise ValueError("there are more parts than answers")
    return found


def read_times(head: Mapping[str, Any]) -> tuple[int, int, int]:
    """Return the nanoseconds of each stage. Raises ``ValueError``."""
    first, second, third = _of(list, head.get("ns"))
    return whole(first), whole(second), whole(third)


def whole(value: object) -> int:
    """Return ``value`` if it is a whole number from 0 to 2^63 − 1. Raises ``ValueError``."""
    if type(value) is not int or not 0 <= value < 1 << 63:
        raise ValueError("a whole number was expected")
    return value


def text(value: object) -> str:
    """Return a text, cut to ``_MAX_TEXT`` characters. Raises ``ValueError``."""
    return cast(str, _of(str, value))[:_MAX_TEXT]


def hook_failed(head: Mapping[str, Any]) -> HookFailed:
    """Return the error in a head. Raises ``ValueError``."""
    return HookFailed(text(head.get("message")), hint=text(head.get("hint")))


def _outcome(job: Mapping[str, Any], parts: Iterator[memoryview]) -> Outcome:
    statistics = _of(dict, job.get("statistics"))
    kind = job.get("is")
    if kind in ("json", "large_json"):
        part = _next(parts)
        if len(part) > _MAX_ANSWER:
            too_large = HookFailed(
                f"the answer has {len(part) >> 20} MiB of JSON, at most {_MAX_ANSWER >> 20}", hint="return bytes"
            )
            return Outcome(None, too_large, statistics)
        return Outcome(orjson.loads(part) if kind == "json" else _large_json(part), None, statistics)
    if kind == "bytes":
        return Outcome(bytes(_next(parts)), None, statistics)
    if kind == "response":
        body = bytes(_next(parts))
        pairs = [(text(n).encode("latin-1"), text(v).encode("latin-1")) for n, v in _of(list, job.get("headers"))]
        try:
            return Outcome(HookResponse.checked(body, job.get("status"), pairs), None, statistics)
        except HookFailed as error:
            return Outcome(None, error, statistics)
    if kind == "refused":
        return Outcome(None, InputRefused(text(job.get("message")), hint=text(job.get("hint"))), statistics)
    if kind == "failed":
        return Outcome(None, hook_failed(job), statistics)
    raise ValueError("an outcome was expected")


def _large_json(part: memoryview) -> object:
    """Return the values of JSON with integers beyond 64 bits, which orjson would read as floats."""
    try:
        return json.loads(bytes(part))
    except RecursionError:
        raise ValueError("the answer is nested too deep") from None


def _parts(payload: Buffer, sizes: list[object]) -> Iterator[memoryview]:
    """Yield the parts of a payload by the sizes in its head; raise ``ValueError`` if bytes are missing or left over."""
    view = memoryview(payload)
    place = 0
    for size in sizes:
        end = place + whole(size)
        if end > len(view):
            raise ValueError("the payload is cut short")
        yield view[place:end]
        place = end
    if place != len(view):
        raise ValueError("the payload is longer than its parts")


def _next(parts: Iterator[memoryview]) -> memoryview:
    part = next(parts, None)
    if part is None:
        raise ValueError("there are fewer parts than answers")
    return part


def _of(kind: type, value: object) -> Any:
    if type(value) is not kind:
        raise ValueError(f"a {kind.__name__} was expected")
    return value


def _shown(name: bytes) -> str:
    return repr(name[:40].decode("latin-1"))


def _unfit(what: str, hint: str) -> HookFailed:
    return HookFailed(f"the endpoint's code answered with {what}, which cannot be sent", hint=hint)

"""Checks the answers of hook processes before they are used: users' code can make a process send anything.

Anything that is not a valid answer raises ``ValueError``, and the process that sent it is ended.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final, cast

import orjson

from gateway.errors import GatewayError, HookFailed, InputRefused
from gateway.hooks.wire import Buffer

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
    """The result of one request in the process, and the nanoseconds of each stage."""

    answer: object
    error: GatewayError | None
    statistics: Mapping[str, Any]
    stage_ns: tuple[int, int, int]


def read_outcome(head: Mapping[str, Any], payload: Buffer) -> Outcome:
    """Return the outcome of a request. Raises ``ValueError`` for an invalid one."""
    statistics = _of(dict, head.get("statistics"))
    first, second, third = _of(list, head.get("ns"))
    stage_ns = whole(first), whole(second), whole(third)
    try:
        return Outcome(_answer(head, payload), None, statistics, stage_ns)
    except GatewayError as error:
        return Outcome(None, error, statistics, stage_ns)


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


def _answer(head: Mapping[str, Any], payload: Buffer) -> object:
    """Return the answer. Raises the request's ``GatewayError``, or ``ValueError`` for what is no outcome."""
    match head.get("is"):
        case "json":
            return orjson.loads(payload)
        case "bytes":
            return bytes(payload)
        case "response":
            pairs = [(text(n).encode("latin-1"), text(v).encode("latin-1")) for n, v in _of(list, head.get("headers"))]
            return HookResponse.checked(bytes(payload), head.get("status"), pairs)
        case "refused":
            raise InputRefused(text(head.get("message")), hint=text(head.get("hint")))
        case "failed":
            raise hook_failed(head)
    raise ValueError("an outcome was expected")


def _of(kind: type, value: object) -> Any:
    if type(value) is not kind:
        raise ValueError(f"a {kind.__name__} was expected")
    return value


def _shown(name: bytes) -> str:
    return repr(name[:40].decode("latin-1"))


def _unfit(what: str, hint: str) -> HookFailed:
    return HookFailed(f"the endpoint's code answered with {what}, which cannot be sent", hint=hint)

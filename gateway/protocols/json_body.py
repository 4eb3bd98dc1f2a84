"""Parses JSON bodies and renders JSON answers, for all protocols. Pure."""

from __future__ import annotations

import json
import re
from contextlib import suppress
from functools import cache
from typing import Any, Final

import numpy as np
import orjson

from gateway.errors import HookFailed, InputRefused, MalformedBody, PayloadTooLarge, UnsupportedMedia
from gateway.hooks.answers import HookResponse
from gateway.hooks.json_form import to_json
from gateway.path.call import Reply

TEXT_FORM: Final = '{"text": "…"}'
"""An example of a body in the endpoints' own form."""
_ROOM: Final = 24
"""Levels that an answer may add around a value of the request."""
_MAX_DEPTH: Final = 254 - _ROOM
"""Levels that are read: orjson writes at most 254, and reads 1,024."""
MAX_WEIGHT: Final = 1_000_000
"""The most that a body may weigh: a comma counts 1, a key 9, an opening bracket or brace 10, about their cost.

Without a limit, 16 MiB of ``[[]],`` would block the event loop, and with it every other request, for two seconds. A
body within it takes some 50 ms. A thread would not help, because the
parser holds the interpreter's lock.
"""
_CONTAINER: Final = 10
_KEY: Final = 9
_SPACE: Final = b" \t\r\n"
_SHORT: Final = 2048
_MARK: Final = b"\xef\xbb\xbf"
"""The byte order mark of UTF-8, which some editors and clients write."""
_DECIMALS: Final = b"0123456789"
_RUN: Final = 19
"""The digits of the shortest integer beyond 64 bits, a negative one."""
_LONG_RUN: Final = re.compile(rb"[0-9]{%d}" % _RUN)
_INTEGERS: Final = range(-(1 << 63), 1 << 64)
_LONGEST: Final = len(str(-(1 << 63)))
_BINARY: Final = (b"content-type", b"application/octet-stream")


def decode(raw: bytes, content_type: bytes, *, takes_bytes: bool, form: str = TEXT_FORM) -> object:
    """Return the body as JSON values, or unchanged if its type is not JSON and the endpoint takes bytes.

    ``form``: an example of the body, for hints. No content type counts as JSON.

    Raises ``UnsupportedMedia`` or ``MalformedBody``.
    """
    if not is_json(content_type):
        if takes_bytes:
            return raw
        shown = ascii(content_type.decode("latin-1"))[1:-1][:80]
        raise UnsupportedMedia(f"content-type {shown} is not JSON", hint=_example(form))
    if not raw:
        raise MalformedBody("the body is empty", hint=_example(form))
    return loads(raw, hint=_example(form))


@cache
def _example(form: str) -> str:
    return f"send JSON: -H 'content-type: application/json' -d '{form}'"


def loads(raw: bytes, *, hint: str) -> Any:
    """Return the values of JSON text; a byte order mark in front of it is left out.

    Raises ``MalformedBody`` with ``hint`` for invalid JSON, and if it is nested more deeply than an answer can repeat;
    ``PayloadTooLarge`` if the values weigh more than ``MAX_WEIGHT``; ``InputRefused`` for an integer beyond 64 bits,
    which the parser would read as a float.
    """
    if raw.startswith(_MARK):
        raw = raw[len(_MARK) :]
    containers = 0 if len(raw) <= _MAX_DEPTH else _weighed(raw)
    if _has_long_run(raw):
        _check_numbers(raw)
    try:
        value = orjson.loads(raw)
    except orjson.JSONDecodeError as error:
        raise MalformedBody(f"the body is not valid JSON: {error}", hint=hint) from None
    if containers > _MAX_DEPTH:
        try:
            orjson.dumps(_deeper(value, _ROOM))
        except TypeError:
            raise MalformedBody(
                f"the body is nested too deep: at most {_MAX_DEPTH} levels are read", hint="send flatter values"
            ) from None
    return value


def _weighed(raw: bytes) -> int:
    """Return how many containers the JSON has at most. Raises ``PayloadTooLarge``."""
    containers = _count(raw, b"[") + _count(raw, b"{")
    weight = containers * _CONTAINER
    if weight + 2 * len(raw) > MAX_WEIGHT:  # a key and its comma have at least five bytes, and count ten
        weight += _count(raw, b",")
        if weight + _KEY * _count(raw, b":") > MAX_WEIGHT:
            weight += _KEY * raw.translate(None, _SPACE).count(b'":')  # without the colons in texts
    if weight > MAX_WEIGHT:
        raise PayloadTooLarge(
            f"the JSON has too many values: at most {MAX_WEIGHT:,} are read; a list or object counts as {_CONTAINER}, "
            f"a key {_KEY}; commas and brackets in texts count, too",
            hint="send several requests, or tensors as binary data (Open Inference Protocol, over HTTP or gRPC)",
        )
    return containers


def _check_numbers(raw: bytes) -> None:
    """Raise ``InputRefused`` for an integer beyond 64 bits, which has a long run of digits."""
    try:
        orjson.loads(_LONG_RUN.sub(b"x" * _RUN, raw))
    except orjson.JSONDecodeError:  # with letters in it, a text is still JSON, a number is not
        with suppress(ValueError, RecursionError):  # not JSON at all, and refused for that later
            json.loads(raw, parse_int=_whole, parse_float=len)  # slower, and it shows the digits


def _has_long_run(raw: bytes) -> bool:
    if len(raw[_RUN - 1 :: _RUN].translate(None, _DECIMALS)) == len(raw) // _RUN:
        return False  # every `_RUN` digits in a row have one at a multiple of `_RUN`
    if len(raw) < _SHORT:
        return _LONG_RUN.search(raw) is not None
    runs = np.frombuffer(raw, np.uint8) - np.uint8(48) < 10
    for step in (1, 2, 4, 8, _RUN - 16):  # where 2, 4, 8, 16 and `_RUN` digits begin
        runs = runs[:-step] & runs[step:]
    return bool(runs.any())


def _whole(digits: str) -> None:
    if len(digits) > _LONGEST or int(digits) not in _INTEGERS:
        raise InputRefused(
            f"the integer {digits[:40]}{'…' * (len(digits) > 40)} does not fit 64 bits",
            hint="send it as a text, or as a float (1e20) if its last digits do not matter",
        )


def _count(raw: bytes, byte: bytes) -> int:
    """Return ``raw.count(byte)``; for a long body in a fifth of its time, which would exceed the parser's."""
    return raw.count(byte) if len(raw) < _SHORT else int(np.count_nonzero(np.frombuffer(raw, np.uint8) == byte[0]))


def _deeper(value: Any, levels: int) -> Any:
    for _ in range(levels):
        value = [value]
    return value


def is_json(content_type: bytes) -> bool:
    """Return whether a body of this content type, or of none, is read as JSON; it is UTF-8, whatever the charset."""
    if not content_type or content_type == b"application/json":
        return True
    kind = content_type.lower().partition(b";")[0].strip()
    return kind == b"application/json" or kind.endswith(b"+json")


def rendered(answer: object) -> bytes | Reply:
    """Return the reply for an endpoint's answer: JSON, or the response that a hook has made itself.

    Raises ``HookFailed`` if it has no JSON form.
    """
    if type(answer) is dict:
        return dumps(answer)
    if isinstance(answer, bytes | bytearray | memoryview):
        return Reply(200, [_BINARY], bytes(answer))
    if type(answer) is HookResponse:  # checked where the hook's answer came in
        return Reply(answer.status_code, answer.raw_headers, answer.body)
    return dumps(answer)


def dumps(answer: object) -> bytes:
    """Return an answer as JSON. Raises ``HookFailed`` if it has no JSON form."""
    try:
        return to_json(answer)
    except (TypeError, ValueError, RecursionError) as error:
        raise HookFailed(
            f"the answer cannot be written as JSON: {error}", hint="return dicts, lists, strings, numbers or arrays"
        ) from error

"""Does the core read the same requests from bytes as h11, in whatever pieces they come?

Everything happens in one process, on transports that keep what is written; the application says back what it was asked.
A stream is some requests behind each other, some of them odd or broken, cut into reads at any byte.

- The same bytes in one read get the same answers, but for answers that do not wait for the body.
- h11 reads the same requests, except where one of the two refuses what the other takes: ``DIFFERS_FROM_H11``. Where
  both take a request it is the same request, and the next one begins at the same byte, without exception.
"""

from __future__ import annotations

import asyncio
import random
import re
from collections import Counter
from collections.abc import Callable, Sequence
from http import HTTPStatus
from typing import Any, Final, NamedTuple
from urllib.parse import unquote

import h11
import pytest

from gateway.http.connections import Connections
from gateway.http.exchange import Exchange
from gateway.outcome import Outcome
from tests.core_client import in_memory

COUNT: Final = 20_000
BATCH: Final = 200
_ROUNDS: Final = 14
"""Turns of the loop after each read: more than any answer takes."""
MAX_HEAD_BYTES: Final = 4096
MAX_HEADERS: Final = 24


# --- the streams ------------------------------------------------------------------------------------------------------

_TARGETS: Final = (
    b"/serve/e", b"/serve/e", b"/serve/e/1", b"/serve/a/b/c", b"/serve/", b"/serve/e?version=2", b"/serve/e%20x",
    b"/serve/e#f", b"/serve//e", b"/serve/./e", b"/other", b"/", b"*", b"http://h/serve/e", b"/serve/e;p", b"//serve/e",
    b"/serve/skip", b"/serve/\xc3\xa9", b"/serve/e~-_.:", b"serve/e", b"/serve/e\"<>", b"/SERVE/e",
    b"/serve/%zz", b"?x", b"/serve/e?", b"/serve/e#",
)  # fmt: skip
_METHODS: Final = (
    b"GET", b"HEAD", b"PUT", b"DELETE", b"OPTIONS", b"PATCH", b"post", b"POSTS", b"CONNECT", b"TRACE", b"P OST", b"",
    b"PRI", b"BREW",
)  # fmt: skip
_LINES: Final = (
    b"user-agent: a/1.0", b"Accept: */*", b"x-request-id: 1234", b"x-routing-key: me",
    b"Content-Type: application/json", b"accept-encoding: gzip, deflate", b"x-empty:", b"x-space:  two",
    b"x-tab:\tv", b"x-trail: v  ", b"x-latin: \xe9",
    b"cookie: a=b; c=d", b"Connection: keep-alive", b"connection: Keep-Alive", b"x-quote: \"a, b\"", b"te: trailers",
    b"x-many: 1", b"x-many: 2", b"keep-alive: timeout=5", b"x'y!#$%&*+-.^_`|~: v", b"host: again",
)  # fmt: skip
_ODD_LINES: Final = (
    b"connection: close", b"Connection: close, keep-alive", b"connection: upgrade", b"upgrade: h2c",
    b"expect: 100-continue", b"Expect: 200-ok", b"transfer-encoding: chunked", b"Transfer-Encoding: gzip, chunked",
    b"transfer-encoding: identity", b"content-length: 3", b"content-length: +3", b"content-length: 0x3",
    b"content-length: 3, 3", b"content-length:", b"content-length: 99999999999999999999", b"content-length: -1",
    b"Content-Length : 3", b"x bad: v", b": v", b"novalue", b" folded: v", b"x: a\0b", b"x: a\x01b", b"x: a\x7fb",
    b"x: a\rb", b"x: a\nb", b"x\xe9: v", b"proxy-connection: close", b"connection: x", b"transfer-encoding:",
    b"x: " + b"y" * 5000, b"x(y: v", b"trailer: x-sum", b"content-length: 007", b"\x00", b"transfer-encoding: x",
)  # fmt: skip
_VERSIONS: Final = (b"HTTP/1.0", b"HTTP/1.0", b"HTTP/2.0", b"HTTP/1.2", b"http/1.1", b"HTTP/11", b"", b"HTTP/0.9")
_BODIES: Final = (
    b'{"text": "good"}',
    b"",
    b"no thanks",
    b"at once",
    b"x" * 60,
    b"\r\n\r\n",
    b"POST /serve/e HTTP/1.1\r\n",
)
_JUNK: Final = (b"\r\n", b"\r\n\r\n", b"\n", b"\0", b"what is this\r\n\r\n", b"\x16\x03\x01\x02\x00", b" ", b"\r")


def _chunked(draw: random.Random, body: bytes) -> bytes:
    parts = []
    at = 0
    while at < len(body):
        size = draw.randint(1, len(body) - at)
        digits = draw.choice((b"%x", b"%X", b"0%x")) % size
        extension = draw.choice((b"", b"", b"", b";a=b", b'; q="x"')) if draw.random() < 0.3 else b""
        parts.append(digits + extension + b"\r\n" + body[at : at + size] + b"\r\n")
        at += size
    end = draw.choice((b"0\r\n\r\n",) * 8 + (b"0\r\nx-sum: 1\r\n\r\n", b"00\r\n\r\n", b"0\r\nbad trailer\r\n\r\n"))
    coded = b"".join(parts) + end
    if draw.random() < 0.15:
        wrong = draw.choice((b"g\r\n", b"-1\r\n", b"5\r\nab\r\n", b"fffffffffffffffff\r\n", b"\r\n", b"1\nx\n"))
        at = draw.randint(0, len(coded))
        coded = coded[:at] + wrong + coded[at:]
    return coded


def _request(draw: random.Random, *, is_odd: bool) -> bytes:
    """As one of a few clients sends it, or unusual or wrong in any respect."""

    def usual(one: bytes, others: Sequence[bytes], share: float) -> bytes:
        return draw.choice(others) if is_odd and draw.random() < share else one

    body, target = draw.choice(_BODIES), draw.choice(_TARGETS if is_odd else _TARGETS[:5])
    lines = draw.sample(_LINES, draw.randint(0, 5)) if is_odd else list(_LINES[: draw.randint(0, 6)])
    framing = draw.random() if is_odd else 0.0
    if framing < 0.45:
        length = max(0, len(body) + (draw.choice((0, 0, 0, 0, 0, 0, -1, 3)) if is_odd else 0))
        lines.insert(draw.choice((0, len(lines))), draw.choice((b"content-length: %d", b"Content-Length: %d")) % length)
    elif framing < 0.75:
        lines.append(draw.choice((b"transfer-encoding: chunked", b"Transfer-Encoding: Chunked")))
        body = _chunked(draw, body)
    else:
        body = b""
    if not is_odd or draw.random() < 0.9:
        lines.insert(0, b"host: x")
    if is_odd:
        lines += [b"x%d: y" % number for number in range(draw.choice((15, 40)) if draw.random() < 0.03 else 0)]
        for _ in range(draw.choice((0, 0, 1, 1, 2))):
            lines.insert(draw.randint(0, len(lines)), draw.choice(_ODD_LINES))
    parts = usual(b"POST", _METHODS, 0.4), target, usual(b"HTTP/1.1", _VERSIONS, 0.15)
    end = usual(b"\r\n", (b"\n", b"\r", b"\r\r\n"), 0.04)
    head = b" ".join(part for part in parts if part or draw.random() < 0.5)
    return end.join([head, *lines, b"", b""]) + body


def stream(seed: int, number: int) -> list[bytes]:
    """Return the reads of the stream with this number."""
    draw = random.Random(f"{seed}/{number}")
    parts = []
    for _ in range(draw.choice((1, 1, 2, 2, 3, 4))):
        kind = draw.random()
        if kind < 0.04:
            parts.append(draw.choice(_JUNK))
        parts.append(_request(draw, is_odd=kind >= 0.65))
    if draw.random() < 0.04:
        parts[-1] = parts[-1][: draw.randint(0, len(parts[-1]))]
    if draw.random() < 0.03:
        at = draw.randrange(len(parts))
        whole = bytearray(parts[at])
        if whole:
            whole[draw.randrange(len(whole))] = draw.randrange(256)
        parts[at] = bytes(whole)
    if draw.random() < 0.65:  # each request in its own read, as clients send them
        reads = []
        for part in parts:
            at = draw.randrange(len(part) + 1) if draw.random() < 0.25 else 0
            reads += [part[:at], part[at:]]
    else:
        whole = b"".join(parts)
        cuts = sorted(draw.randrange(len(whole) + 1) for _ in range(draw.choice((0, 0, 1, 2, 5))))
        reads = [whole[a:b] for a, b in zip([0, *cuts], [*cuts, len(whole)], strict=True)]
    return [read for read in reads if read]


# --- the application --------------------------------------------------------------------------------------------------


async def _echo(exchange: Exchange) -> None:
    """Answer with what was asked: at once, later, or without reading the body."""
    exchange.open()
    body = b"" if exchange.path == "/serve/skip" else await exchange.read_body(1 << 30, lambda _size: None)
    if body.startswith(b"no"):
        later: Outcome[None] = Outcome()
        asyncio.get_running_loop().call_soon(later.set_result, None)
        await later
    asked = [exchange.method, exchange.path, exchange.query, _lines(exchange.headers), body]
    exchange.reply(200, [(b"x-method", exchange.method.encode())], repr(asked).encode())


async def answered(streams: Sequence[list[bytes]]) -> list[tuple[list[Answer], bool]]:
    """Return for each stream its answers but 100, and whether the connection was closed."""
    limits = Connections(
        head_timeout=3600, keep_alive=3600, body_timeout=3600, max_head_bytes=MAX_HEAD_BYTES, max_headers=MAX_HEADERS
    )
    wires = [(*in_memory(_echo, limits), list(reads)) for reads in streams]
    is_busy = True
    while is_busy:
        is_busy = False
        for ear, connection, reads in wires:
            if reads and not ear.is_closed:
                is_busy = True
                if not ear.is_paused:
                    connection.data_received(reads.pop(0))
        for _ in range(_ROUNDS):
            await asyncio.sleep(0)
    found = []
    for ear, connection, _ in wires:
        found.append(([one for one in answers(ear.heard) if one.status >= 200], ear.is_closed))
        connection.connection_lost(None)
    return found


# --- what they mean ---------------------------------------------------------------------------------------------------


class Answer(NamedTuple):
    """One answer on the wire."""

    status: int
    headers: dict[bytes, bytes]
    body: bytes


def answers(written: bytes) -> list[Answer]:
    """Split the answers to a stream. Raises ``ValueError`` if it is not exactly a sequence of answers."""
    found: list[Answer] = []
    at = 0
    while at < len(written):
        end = written.index(b"\r\n\r\n", at) + 4
        first, *lines = written[at : end - 4].split(b"\r\n")
        if not first.startswith(b"HTTP/1.1 "):
            raise ValueError(f"not an answer: {first[:60]!r}")
        headers, status = dict(line.split(b": ", 1) for line in lines), int(first.split()[1])
        at = end if status == 100 or headers.get(b"x-method") == b"HEAD" else end + int(headers[b"content-length"])
        found.append(Answer(status, headers, written[end:at]))
    if at != len(written):
        raise ValueError("the last answer is cut short")
    return found


class Judged(NamedTuple):
    """What h11 makes of a stream: its requests as the application would report them, where each begins, and why it
    stopped: ``closed`` (a request was the last one), ``refused``, or empty (everything was read).
    """

    requests: list[bytes]
    starts: list[int]
    stopped: str


def judge(whole: bytes) -> Judged:
    """Read a stream with h11, answering each request at once."""
    connection = h11.Connection(h11.SERVER, max_incomplete_event_size=1 << 20)
    connection.receive_data(whole)
    requests: list[bytes] = []
    starts = [0]
    request, body = None, b""
    while True:
        try:
            event = connection.next_event()
        except h11.RemoteProtocolError:
            return Judged(requests, starts, "refused")
        if isinstance(event, h11.Request):
            request, body = event, b""
        elif isinstance(event, h11.Data):
            body += bytes(event.data)
        elif isinstance(event, h11.EndOfMessage):
            requests.append(_of_h11(request, body))
            connection.send(h11.Response(status_code=405, headers=[("content-length", "0")]))
            connection.send(h11.EndOfMessage())
            left = connection.trailing_data[0]
            try:
                connection.start_next_cycle()
            except h11.LocalProtocolError:
                return Judged(requests, starts, "closed")
            starts.append(len(whole) - len(left))
        else:  # needs more bytes, or is paused
            return Judged(requests, starts, "")


def _of_h11(request: Any, body: bytes) -> bytes:
    target = re.sub(rb"#.*", b"", bytes(request.target), flags=re.S)
    target = re.sub(rb"^[a-z]+://[^/?]*", b"", target, flags=re.I)
    path, _, query = target.partition(b"?")
    shown = b"" if path == b"/serve/skip" else body
    asked = [request.method.decode(), unquote(path.decode("latin-1")), query, _lines(request.headers), shown]
    return repr(asked).encode()


def _lines(headers: Any) -> list[tuple[bytes, bytes]]:
    """The headers but those that say where a request ends, and the offer of another protocol, which we drop."""
    ends = (b"content-length", b"transfer-encoding", b"upgrade")
    return sorted((bytes(name), bytes(value).strip(b" \t")) for name, value in headers if name not in ends)


# --- where they differ, and why ---------------------------------------------------------------------------------------

Differs = Callable[[bytes, list[Answer]], bool]
"""Called with the stream from the differing request on, and our answers from there on."""


def _has(pattern: bytes) -> Differs:
    search = re.compile(pattern, re.I | re.S).search
    return lambda rest, _ours: search(rest) is not None


DIFFERS_FROM_H11: Final[dict[str, Differs]] = {
    "we refuse what it takes": lambda _rest, ours: bool(ours) and ours[-1].status in (400, 405, 431),
    "a request without Host, or with two, is taken: clients of one server leave it out": lambda rest, _ours: (
        len(re.findall(rb"^host *:", re.split(rb"\r?\n\r?\n", rest.lstrip(b"\r\n"), maxsplit=1)[0], re.I | re.M)) != 1
    ),
    "empty lines before a request are skipped": _has(rb"^[\r\n]"),
    "the application answered before the body was read": _has(rb"/serve/skip"),
    "proxy-connection: close ends a connection, as connection: close does": _has(rb"proxy-connection: close"),
}
"""Why a request is read differently from h11."""


def over_h11(mine: list[Answer], whole: bytes, judged: Judged) -> str:
    """Return why what we read differs from what h11 read: a rule, empty if it does not, or ``?`` and the difference."""

    def why(at: int, answered: list[Answer], shown: str) -> str:
        rest = whole[judged.starts[min(at, len(judged.starts) - 1)] :]
        return next((name for name, applies in DIFFERS_FROM_H11.items() if applies(rest, answered)), f"? {shown}")

    for at, request in enumerate(judged.requests):
        if at >= len(mine):
            return why(max(at - 1, 0), [], f"h11 takes {request!r}, we do not answer")
        if mine[at].status != 200:
            return why(at, mine[at:], f"h11 takes {request!r}, we refuse: {mine[at]}")
        if mine[at].body != request and mine[at].headers[b"x-method"] != b"HEAD":
            return f"? both take a request and read it differently: h11 {request!r}, we {mine[at]}"
    more = mine[len(judged.requests) :]
    if not more or (judged.stopped == "refused" and more[0].status != 200):
        return ""
    return why(len(judged.requests), more, f"we answer {more[0]}, h11 {judged.stopped or 'waits'}")


def _agree(cut: tuple[list[Answer], bool], whole: tuple[list[Answer], bool]) -> bool:
    """Return whether a stream in pieces and in one read got the same answers, but for the sentences of refusals.

    A head is refused as too large when that much of it has come. In one read it may end before more comes, or show
    another fault; in no case is it answered.
    """
    in_pieces, at_once = [[(one.status, one.status == 200 and one.body) for one in found] for found, _ in (cut, whole)]
    if not in_pieces or in_pieces[-1][0] != HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE:
        return (in_pieces, cut[1]) == (at_once, whole[1])
    before = in_pieces[:-1]
    return before == at_once[: len(before)] and all(status >= 400 for status, _ in at_once[len(before) :])


@pytest.mark.long
async def test_no_answer_differs_without_a_reason_and_every_reason_is_needed() -> None:
    """Whatever the pieces, and what h11 takes is read as h11 reads it. Most streams need no reason, except that one
    side refuses them.
    """
    requests, reasons, unexplained = 0, Counter[str](), list[str]()
    for first in range(0, COUNT, BATCH):
        batch = range(first, first + BATCH)
        streams = [stream(15, number) for number in batch]
        cut, whole_reads = await answered(streams), await answered([[b"".join(reads)] for reads in streams])
        for number, reads, ours, at_once in zip(batch, streams, cut, whole_reads, strict=True):
            whole = b"".join(reads)
            judged = judge(whole)
            requests += len(judged.requests)
            # An answer that does not wait for the body depends on how much of it has come.
            same = b"/serve/skip" in whole or _agree(ours, at_once)
            faults = [] if same else [f"? in pieces it says {ours}, at once {at_once}"]
            why = over_h11(ours[0], whole, judged)
            if why.startswith("?"):
                faults.append(why)
            elif why:
                reasons[why] += 1
            unexplained += [f"stream {number}, {reads}: {fault[2:]}" for fault in faults]
    assert [] == unexplained[:3]
    assert requests > COUNT > 4 * reasons.total()
    assert set(DIFFERS_FROM_H11) == set(reasons)

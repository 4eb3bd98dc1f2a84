"""Do the fast path, the ordinary one, uvicorn's own protocol and h11 read the same requests from the same bytes?

``test_streams.py`` beside it runs 20,000 of the generated streams. Everything happens in one process, on transports
that keep what is written; the application says back what it was asked.
A stream is some requests behind each other,
most of them of the kind that the fast path takes, some of them odd or broken, cut into reads at any byte.

- The fast path and the ordinary one write the same bytes and end alike. There is no exception.
- uvicorn's protocol gives the same answers, except where this gateway means to differ: ``DIFFERS_FROM_UVICORN``.
- h11 reads the same requests, except where one of the two refuses what the other takes: ``DIFFERS_FROM_H11``. Where
  both take a request it is the same request, and the next one begins at the same byte, without exception.
"""

from __future__ import annotations

import asyncio
import json
import random
import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import h11
import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.server import ServerState

from gateway.edge.http.connections import Connections
from gateway.edge.http.fast import EXTENSION, FastProtocol, HeadCache
from gateway.edge.http.protocol import GatewayProtocol

BATCH: Final = 200
_ROUNDS: Final = 14
"""Turns of the loop after each read: more than any answer takes."""
_ID: Final = re.compile(rb'"request_id":"[0-9a-f]{16}"')
MAX_HEAD_BYTES: Final = 4096
MAX_HEADERS: Final = 24


# --- the streams ------------------------------------------------------------------------------------------------------

_TARGETS: Final = (
    b"/serve/e", b"/serve/e", b"/serve/e/1", b"/serve/a/b/c", b"/serve/", b"/serve/e?version=2", b"/serve/e%20x",
    b"/serve/e#f", b"/serve//e", b"/serve/./e", b"/other", b"/", b"*", b"http://h/serve/e", b"/serve/e;p", b"//serve/e",
    b"/serve/skip", b"/serve/pieces", b"/serve/\xc3\xa9", b"/serve/e~-_.:", b"serve/e", b"/serve/e\"<>", b"/SERVE/e",
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


def _plain(draw: random.Random) -> bytes:
    """A request as the fast path takes it, from one of a few clients."""
    body = draw.choice(_BODIES)
    lines = list(_LINES[: draw.randint(0, 6)])
    if draw.random() < 0.2:
        lines.append(draw.choice(_LINES))
    length = draw.choice((b"content-length: %d", b"Content-Length: %d")) % len(body)
    lines.insert(draw.choice((0, len(lines))), length)
    target = draw.choice(_TARGETS[:5])
    return b"POST %b HTTP/1.1\r\nhost: x\r\n%b\r\n\r\n%b" % (target, b"\r\n".join(lines), body)


def _odd(draw: random.Random) -> bytes:
    """A request that may be unusual or wrong in any respect."""
    method = b"POST" if draw.random() < 0.6 else draw.choice(_METHODS)
    target = draw.choice(_TARGETS)
    version = b"HTTP/1.1" if draw.random() < 0.85 else draw.choice(_VERSIONS)
    body = draw.choice(_BODIES)
    lines = draw.sample(_LINES, draw.randint(0, 5))
    if draw.random() < 0.9:
        lines.insert(0, b"host: x")
    if draw.random() < 0.03:
        lines += [b"x%d: y" % number for number in range(draw.choice((15, 40)))]
    framing = draw.random()
    if framing < 0.45:
        lines.append(b"content-length: %d" % max(0, len(body) + draw.choice((0, 0, 0, 0, 0, 0, -1, 3))))
    elif framing < 0.75:
        lines.append(draw.choice((b"transfer-encoding: chunked", b"Transfer-Encoding: Chunked")))
        body = _chunked(draw, body)
    else:
        body = b""
    for _ in range(draw.choice((0, 0, 1, 1, 2))):
        lines.insert(draw.randint(0, len(lines)), draw.choice(_ODD_LINES))
    end = b"\r\n" if draw.random() < 0.96 else draw.choice((b"\n", b"\r", b"\r\r\n"))
    head = b" ".join(part for part in (method, target, version) if part or draw.random() < 0.5)
    return head + end + b"".join(line + end for line in lines) + end + body


def stream(seed: int, number: int) -> list[bytes]:
    """Return the reads of the stream with this number."""
    draw = random.Random(f"{seed}/{number}")
    parts = []
    for _ in range(draw.choice((1, 1, 2, 2, 3, 4))):
        kind = draw.random()
        if kind < 0.04:
            parts.append(draw.choice(_JUNK))
        parts.append(_plain(draw) if kind < 0.65 else _odd(draw))
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


def _said(
    method: str, path: str, raw: bytes, query: bytes, headers: Sequence[tuple[bytes, bytes]], body: bytes
) -> bytes:
    """What the application was asked. The length of the body stands for the header that announced it."""
    lines = [(name.decode("latin-1"), value.decode("latin-1")) for name, value in headers if name != b"content-length"]
    raws = (raw.decode("latin-1"), query.decode("latin-1"))
    return json.dumps([method, path, *raws, lines, body.decode("latin-1")]).encode()


class Echo:
    """Answers with what it was asked, on the fast path or off it."""

    prefix = b"/serve/"
    prefixes = (b"POST /serve/",)
    max_bytes = 64 << 10
    admin_port = 0

    def __init__(self) -> None:
        self.fast_path = self
        self.heads = HeadCache(64)
        self.taken = 0
        self.connections = Connections(
            head_timeout=3600, keep_alive=3600, body_timeout=3600, max_head_bytes=MAX_HEAD_BYTES,
            max_headers=MAX_HEADERS,
        )  # fmt: skip

    def parse_head(self, path: str, headers: Sequence[tuple[bytes, bytes]], _names: Sequence[str] = ()) -> Any:
        """See ``fast.FastPathLike``."""
        return None if path in ("/serve/skip", "/serve/pieces") else (path, headers)

    def is_full(self, plain: Any) -> bool:
        """See ``fast.FastPathLike``."""
        del plain
        return False

    def refusal(self, plain: Any) -> None:
        """See ``fast.FastPathLike``."""

    def try_answer(self, pending: Any, plain: Any, body: bytes) -> bool:
        """See ``fast.FastPathLike``."""
        if body.startswith(b"no"):
            return False
        self.taken += 1
        loop = asyncio.get_running_loop()
        path, headers = plain
        content = _said("POST", path, path.encode(), b"", headers, body)
        head = b"HTTP/1.1 200 OK\r\nx-method: POST\r\ncontent-length: %d\r\n" % len(content)
        if body == b"at once":
            pending.send(head, content)
        else:
            loop.call_soon(pending.send, head, content)
        return True

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Answer as an ordinary application."""
        body = b""
        if scope["path"] != "/serve/skip":
            more = True
            while more:
                message = await receive()
                if message["type"] != "http.request":
                    return
                body += message["body"]
                more = message["more_body"]
        content = _said(
            scope["method"], scope["path"], scope["raw_path"], scope["query_string"], scope["headers"], body
        )  # fmt: skip
        headers = [(b"x-method", scope["method"].encode())]
        if scope["path"] == "/serve/pieces":
            await send({"type": "http.response.start", "status": 200, "headers": headers})
            await send({"type": "http.response.body", "body": content[:10], "more_body": True})
            await send({"type": "http.response.body", "body": content[10:]})
            return
        headers.append((b"content-length", b"%d" % len(content)))
        reply = scope.get("extensions", {}).get(EXTENSION)
        if reply is not None and reply(200, headers, content):
            return
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": content})


class Ear(asyncio.Transport):
    """A transport that stores what is written."""

    def __init__(self) -> None:
        super().__init__({"peername": ("127.0.0.1", 1), "sockname": ("127.0.0.1", 2)})
        self.heard: list[bytes] = []
        self.is_closed = self.is_paused = False
        self.waiting: list[bytes] = []

    def write(self, data: Any) -> None:
        """Store it, unless the connection is closed."""
        if not self.is_closed:
            self.heard.append(bytes(data))

    def close(self) -> None:
        """End the connection."""
        self.is_closed = True

    abort = close

    def is_closing(self) -> bool:
        """See ``asyncio.Transport``."""
        return self.is_closed

    def can_write_eof(self) -> bool:
        """True: the connection ends at once, without lingering."""
        return False

    def get_write_buffer_size(self) -> int:
        """Everything is read at once."""
        return 0

    def pause_reading(self) -> None:
        """Hold back further bytes."""
        self.is_paused = True

    def resume_reading(self) -> None:
        """Deliver held bytes again."""
        self.is_paused = False


class Side:
    """One of the compared protocols, with its own application."""

    def __init__(self, http: type[HttpToolsProtocol]) -> None:
        self.app = Echo()
        self.config = uvicorn.Config(
            self.app, http=http, lifespan="off", log_config=None, ws="none", proxy_headers=False, loop="none",
            server_header=False, date_header=False,
        )  # fmt: skip
        self.config.load()
        self.http = http
        self.state = ServerState()

    def connect(self) -> tuple[Ear, HttpToolsProtocol]:
        """Open a connection."""
        ear, protocol = Ear(), self.http(self.config, self.state, {})
        protocol.connection_made(ear)
        return ear, protocol


async def answered(side: Side, streams: Sequence[list[bytes]]) -> list[tuple[bytes, bool]]:
    """Return for each stream what was written, and whether the connection was closed."""
    wires = [side.connect() for _ in streams]
    for at in range(max(map(len, streams)) + 1):
        for (ear, _), reads in zip(wires, streams, strict=True):
            if at < len(reads):
                ear.waiting.append(reads[at])
        for _ in range(_ROUNDS):
            is_busy = False
            for ear, protocol in wires:
                while ear.waiting and not ear.is_paused and not ear.is_closed:
                    protocol.data_received(ear.waiting.pop(0))
                    is_busy = True
            await asyncio.sleep(0)
            is_busy |= bool(side.state.tasks)
        while is_busy and any(ear.waiting and not ear.is_closed for ear, _ in wires):  # reading was paused for long
            for ear, protocol in wires:
                while ear.waiting and not ear.is_paused and not ear.is_closed:
                    protocol.data_received(ear.waiting.pop(0))
            for _ in range(_ROUNDS):
                await asyncio.sleep(0)
            is_busy = any(ear.waiting and not ear.is_paused and not ear.is_closed for ear, _ in wires)
    found = []
    for ear, protocol in wires:
        found.append((_ID.sub(b'"request_id":"0123456789abcdef"', b"".join(ear.heard)), ear.is_closed))
        protocol.connection_lost(None)
    await asyncio.sleep(0)
    return found


# --- what they mean ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Answer:
    """One answer on the wire."""

    status: int
    headers: tuple[tuple[bytes, bytes], ...]
    body: bytes


def answers(written: bytes, whole: bytes = b"") -> list[Answer]:
    """Split the answers to the stream ``whole``. Raises ``ValueError`` if it is not exactly a sequence of answers."""
    found: list[Answer] = []
    at = 0
    while at < len(written):
        end = written.index(b"\r\n\r\n", at) + 4
        first, *lines = written[at : end - 4].split(b"\r\n")
        if not first.startswith(b"HTTP/1.1 "):
            raise ValueError(f"not an answer: {first[:60]!r}")
        headers = tuple(tuple(line.split(b": ", 1)) for line in lines)
        named = dict(headers)
        at = end
        status = int(first.split()[1])
        if status == 100 or named.get(b"x-method") == b"HEAD":
            body = b""
        elif at == len(written) and named.get(b"connection") == b"close" and b"HEAD" in whole:
            body = b""  # the refusal of a HEAD request
        elif b"content-length" in named:
            body, at = written[at : at + int(named[b"content-length"])], at + int(named[b"content-length"])
        else:
            body, at = _unchunked(written, at)
        found.append(Answer(status, headers, body))  # type: ignore[arg-type]
    if at != len(written):
        raise ValueError("the last answer is cut short")
    return found


def _unchunked(written: bytes, at: int) -> tuple[bytes, int]:
    parts = []
    while True:
        end = written.index(b"\r\n", at)
        size = int(written[at:end], 16)
        parts.append(written[end + 2 : end + 2 + size])
        at = end + 4 + size
        if not size:
            return b"".join(parts), at


@dataclass(slots=True)
class Judged:
    """What h11 makes of a stream: its requests as the application would report them, and why it stopped."""

    requests: list[Any] = field(default_factory=list)
    starts: list[int] = field(default_factory=list)
    stopped: str = ""
    """``closed`` (a request was the last one), ``refused``, or empty (everything was read)."""


def judge(whole: bytes) -> Judged:
    """Read a stream with h11, answering each request at once."""
    found = Judged()
    connection = h11.Connection(h11.SERVER, max_incomplete_event_size=1 << 20)
    connection.receive_data(whole)
    request: Any = None
    parts: list[bytes] = []
    start = 0
    while True:
        try:
            event = connection.next_event()
        except h11.RemoteProtocolError:
            found.starts.append(start)
            found.stopped = "refused"
            return found
        if isinstance(event, h11.Request):
            request, parts = event, []
        elif isinstance(event, h11.Data):
            parts.append(bytes(event.data))
        elif isinstance(event, h11.EndOfMessage):
            found.starts.append(start)
            found.requests.append(_of_h11(request, b"".join(parts)))
            connection.send(h11.Response(status_code=405, headers=[("content-length", "0")]))
            connection.send(h11.EndOfMessage())
            if connection.our_state is h11.MUST_CLOSE or connection.their_state is h11.MUST_CLOSE:
                found.stopped = "closed"
                return found
            left, _ = connection.trailing_data
            start = len(whole) - len(left)
            try:
                connection.start_next_cycle()
            except h11.LocalProtocolError:
                found.stopped = "closed"
                return found
        else:  # needs more bytes, or is paused
            found.starts.append(start)
            return found


def _of_h11(request: Any, body: bytes) -> list[Any]:
    target = re.sub(rb"#.*", b"", bytes(request.target), flags=re.S)
    target = re.sub(rb"^[a-z]+://[^/?]*", b"", target)
    path, _, query = target.partition(b"?")
    return [request.method.decode(), path.decode("latin-1"), query.decode("latin-1"), _lines(request.headers),
            "" if path == b"/serve/skip" else body.decode("latin-1")]  # fmt: skip


def _of_ours(answer: Answer) -> list[Any]:
    method, _, raw, query, lines, body = json.loads(answer.body)
    headers = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in lines]
    return [method, raw, query, _lines(headers), body]


def _lines(headers: Any) -> list[list[str]]:
    return sorted(
        [bytes(name).decode("latin-1"), bytes(value).decode("latin-1").strip(" \t")] for name, value in headers
        if name not in (b"content-length", b"transfer-encoding")
    )  # fmt: skip


# --- where they differ, and why ---------------------------------------------------------------------------------------

Differs = Callable[[bytes, list[Answer], list[Answer]], bool]
"""Called with the stream from the differing request on, our answers from there on, and the other's."""


def _has(pattern: bytes) -> Differs:
    search = re.compile(pattern, re.I | re.S).search
    return lambda rest, _ours, _theirs: search(rest) is not None


def _refused(*statuses: int) -> Differs:
    return lambda _rest, ours, _theirs: bool(ours) and ours[-1].status in statuses


def _says(sentence: bytes, asked: bytes) -> Differs:
    """Our last answer says ``sentence``; that to a HEAD request has no body, and the request matches ``asked``."""
    search = re.compile(asked, re.I | re.M).search

    def applies(rest: bytes, ours: list[Answer], _theirs: list[Answer]) -> bool:
        if not ours:
            return False
        refused_head = ours[-1].status == 400 and not ours[-1].body and b"HEAD " in rest
        return sentence in ours[-1].body or (refused_head and search(rest) is not None)

    return applies


DIFFERS_FROM_UVICORN: Final[dict[str, Differs]] = {
    "a head has a size and a number of lines": _refused(414, 431),
    "uvicorn refuses at once, without the answers that are due, and in plain text": (
        lambda _rest, _ours, theirs: len(theirs) == 1 and theirs[0].body == b"Invalid HTTP request received."
    ),
    "only HTTP/1.0 and 1.1 are spoken": _says(b"and this port speaks HTTP/1.1", rb"HEAD (?![^\n]* HTTP/1\.[01]\r?$)"),
    "the only transfer-encoding is chunked": _says(
        b"the only transfer-encoding that is read is chunked", rb"^transfer-encoding: *(?!chunked\s*$)"
    ),
    "a body behind an offer of another protocol is read, and what follows is a request": _has(rb"upgrade"),
    "a client that expects 100 and was answered without its body gets no further answer": _has(
        rb"expect: *100-continue"
    ),
    "CONNECT is refused": _refused(405),
    "lines behind a chunked body are no headers": _has(rb"\r\n0+\r\n[^\r\n:]+:"),
}
"""Why an answer differs from that of uvicorn's own protocol."""

DIFFERS_FROM_H11: Final[dict[str, Differs]] = {
    "we refuse what it takes": _refused(400, 405, 414, 431),
    "a request without Host, or with two, is taken: clients of one server leave it out": lambda rest, _ours, _theirs: (
        len(re.findall(rb"^host *:", re.split(rb"\r?\n\r?\n", rest.lstrip(b"\r\n"), maxsplit=1)[0], re.I | re.M)) != 1
    ),
    "empty lines before a request are skipped": _has(rb"^[\r\n]"),
    "the application answered before the body was read": _has(rb"/serve/skip"),
    "proxy-connection: close ends a connection, as connection: close does": _has(rb"proxy-connection: close"),
}
"""Why a request is read differently from h11."""


def over_uvicorn(ours: tuple[bytes, bool], theirs: tuple[bytes, bool], whole: bytes, judged: Judged) -> str:
    """Return why our answers differ from uvicorn's: a rule, empty if they do not, or ``?`` and the difference."""
    if ours == theirs:
        return ""
    mine, other = answers(ours[0], whole), _lenient(theirs[0])
    at = next((n for n, (a, b) in enumerate(zip(mine, other, strict=False)) if a != b), min(len(mine), len(other)))
    before = max(0, sum(answer.status >= 200 for answer in mine[:at]) - 1)  # a request may change how the next is read
    return _why(
        DIFFERS_FROM_UVICORN, whole, judged, before, (mine[at:], other[at:]), f"ours {ours}, uvicorn's {theirs}"
    )


def over_h11(ours: tuple[bytes, bool], whole: bytes, judged: Judged) -> str:
    """Return why what we read differs from what h11 read: a rule, empty if it does not, or ``?`` and the difference."""
    mine = [answer for answer in answers(ours[0], whole) if answer.status >= 200]
    for at, request in enumerate(judged.requests):
        if at >= len(mine):
            return _why(
                DIFFERS_FROM_H11, whole, judged, max(at - 1, 0), ([], []), f"h11 takes {request}, we do not answer"
            )
        if mine[at].status != 200:
            return _why(
                DIFFERS_FROM_H11, whole, judged, at, (mine[at:], []), f"h11 takes {request}, we refuse: {mine[at]}"
            )
        if request[0] != "HEAD" and _of_ours(mine[at]) != request:
            return f"? both take a request and read it differently: h11 {request}, we {_of_ours(mine[at])}"
    more = mine[len(judged.requests) :]
    if not more or (judged.stopped == "refused" and more[0].status != 200):
        return ""
    shown = f"we answer {more[0]}, h11 {judged.stopped or 'waits'}"
    return _why(DIFFERS_FROM_H11, whole, judged, len(judged.requests), (more, []), shown)


def _why(
    rules: dict[str, Differs],
    whole: bytes,
    judged: Judged,
    at: int,
    said: tuple[list[Answer], list[Answer]],
    shown: str,
) -> str:
    start = judged.starts[min(at, len(judged.starts) - 1)]
    for name, applies in rules.items():
        if applies(whole[start:], *said):
            return name
    return f"? {shown}"


def _lenient(written: bytes) -> list[Answer]:
    """Like ``answers``, for uvicorn's output: up to where it is no longer a sequence of answers."""
    for end in range(len(written), -1, -1):
        if end == len(written) or written[end : end + 9] == b"HTTP/1.1 ":
            try:
                return answers(written[:end])
            except (ValueError, KeyError):
                continue
    return []


# --- the run ----------------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class Compared:
    """What a run found."""

    streams: int = 0
    requests: int = 0
    fast: int = 0
    uvicorn: Counter[str] = field(default_factory=Counter)
    h11: Counter[str] = field(default_factory=Counter)
    unexplained: list[str] = field(default_factory=list)

    def add(self, other: Compared) -> None:
        """Add what another part of the run found."""
        self.streams += other.streams
        self.requests += other.requests
        self.fast += other.fast
        self.uvicorn += other.uvicorn
        self.h11 += other.h11
        self.unexplained += other.unexplained


async def compare(seed: int, numbers: range, found: Compared) -> None:
    """Send the streams with these numbers to all protocols, and record where the answers differ."""
    fast, ordinary, uvicorns = Side(FastProtocol), Side(GatewayProtocol), Side(HttpToolsProtocol)
    for first in range(numbers.start, numbers.stop, BATCH):
        batch = range(first, min(first + BATCH, numbers.stop))
        streams = [stream(seed, number) for number in batch]
        sides = [await answered(side, streams) for side in (fast, ordinary, uvicorns)]
        for number, reads, *said in zip(batch, streams, *sides, strict=True):
            whole = b"".join(reads)
            judged = judge(whole)
            found.requests += len(judged.requests)
            faults = []
            if said[0] != said[1]:
                faults.append(f"? the fast path says {said[0]}, the ordinary one {said[1]}")
            else:
                for rules, why in (
                    (found.uvicorn, over_uvicorn(said[1], said[2], whole, judged)),
                    (found.h11, over_h11(said[1], whole, judged)),
                ):
                    if why.startswith("?"):
                        faults.append(why)
                    elif why:
                        rules[why] += 1
            found.unexplained += [f"stream {number} of seed {seed}, {reads}: {fault[2:]}" for fault in faults]
        found.streams += len(streams)
    found.fast += fast.app.taken

"""``POST /v1/feedback``: the true labels of earlier answers, one or many. Only counts are stored.

A label comes with its version and the predicted label, which the caller has. Any worker of any gateway can therefore
count it, at any later time.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Final, NamedTuple

import orjson

from gateway.callers.access import Access
from gateway.callers.rights import FEEDBACK, Caller
from gateway.errors import (
    EndpointNotFound,
    GatewayError,
    InputRefused,
    MalformedBody,
    MethodNotAllowed,
    UnsupportedMedia,
)
from gateway.health import Health
from gateway.http import body as bodies
from gateway.http.bridge import Receive, Scope, Send, send_reply
from gateway.http.problems import problem
from gateway.metrics.feedback import Labelled
from gateway.outcome import in_thread
from gateway.path.admission import Permits
from gateway.path.ask import BODY_THREADS, MAX_INLINE_BYTES
from gateway.path.call import Reply
from gateway.path.rights import FEEDBACK_PATH, redacted_for
from gateway.path.routing.snapshot import Snapshot, not_read_yet
from gateway.path.routing.table import RoutingTable
from gateway.protocols.json_body import decode
from gateway.spec import normalize_url
from gateway.trace import DEFAULT, clean_id, new_id

MAX_ITEMS: Final = 1000
_MAX_BYTES: Final = 1 << 20
_MAX_CHARS: Final = 100
_AT_ONCE: Final = 100
"""Labels that are read or counted before requests have their turn."""
_FORM: Final = (
    '{"endpoint": "sentiment/2", "predicted": "POSITIVE", "label": "NEGATIVE"}, '
    'or {"feedback": [ … ]} with a list of them'
)

Count = Callable[[Labelled], None]


class _Version(NamedTuple):
    """What a label is for: the labels it has, in their order and to look them up; none if that is not known."""

    endpoint: str
    version: str
    labels: tuple[str, ...]
    values: frozenset[str]


class FeedbackRoute:
    """Takes labels; ``takes`` says at which path. ``count`` counts one; ``access`` None: anybody may send them."""

    def __init__(
        self,
        table: RoutingTable,
        health: Health,
        permits: Permits,
        count: Count,
        access: Access | None = None,
    ) -> None:
        self._table = table
        self._health = health
        self._permits = permits
        self._count = count
        self._access = access

    def takes(self, path: str) -> bool:
        """True for the path that is answered here."""
        return path == FEEDBACK_PATH

    async def __call__(self, scope: Scope, receive: Receive, send: Send, caller: Caller | None = None) -> None:
        """Answer one HTTP request: all labels of it are counted, or none."""
        headers = dict(scope["headers"])
        request_id = clean_id(headers.get(b"x-request-id", b"")) or new_id()
        try:
            if not self._health.first_sync_done:
                raise not_read_yet()
            if scope["method"] != "POST":
                raise MethodNotAllowed(f"{scope['method']} is not allowed here", allow="POST")
            permit = self._permits.take(DEFAULT)  # its bytes count among those of requests
            try:
                found = await self._read(await _body(receive, headers, permit.hold), caller)
            finally:
                permit.release()
            for n, one in enumerate(found):
                self._count(one)
                if n % _AT_ONCE == 0:
                    await asyncio.sleep(0)
        except GatewayError as error:
            reply = problem(redacted_for(caller, error), request_id)
        else:
            said = {"counted": len(found), **_not_served(found, self._table.current)}
            reply = Reply(200, [(b"content-type", b"application/json")], orjson.dumps(said))
        own = [(b"x-request-id", request_id.encode()), (b"content-length", str(len(reply.content)).encode())]
        await send_reply(send, reply.status, [*reply.headers, *own], reply.content)

    async def _read(self, body: object, caller: Caller | None) -> list[Labelled]:
        if not isinstance(body, Mapping):
            raise InputRefused("the body must be an object", hint=f"send {_FORM}")
        several, snapshot = body.get("feedback"), self._table.current
        versions: dict[str, _Version] = {}
        if several is None:
            return [self._labelled(body, "feedback", caller, snapshot, versions)]
        if not isinstance(several, list) or not 0 < len(several) <= MAX_ITEMS:
            raise InputRefused(f"feedback must be a list of 1 to {MAX_ITEMS} objects", hint=f"send {_FORM}")
        found = []
        for n, one in enumerate(several):
            found.append(self._labelled(one, f"feedback[{n}]", caller, snapshot, versions))
            if n % _AT_ONCE == 0:
                await asyncio.sleep(0)
        return found

    def _labelled(
        self, one: object, where: str, caller: Caller | None, snapshot: Snapshot, versions: dict[str, _Version]
    ) -> Labelled:
        if not isinstance(one, Mapping):
            raise InputRefused(f"{where} is not an object", hint=f"send {_FORM}")
        predicted = _text(one.get("predicted"), f"{where}.predicted")
        label = _text(one.get("label"), f"{where}.label")
        path = _text(one.get("endpoint"), f"{where}.endpoint")
        version = one.get("version")
        url = normalize_url(path, None if version is None else _text(str(version), f"{where}.version"))
        if caller is not None and self._access is not None:
            self._access.require(caller, FEEDBACK, url)
        found = versions.get(url)
        if found is None:
            found = versions[url] = _version(snapshot, url, where)
        endpoint, number, known, values = found
        for value, name in ((predicted, "predicted"), (label, "label")):
            if known and value not in values:
                listed = ", ".join(known[:10]) + (", …" if len(known) > 10 else "")
                raise InputRefused(f"{where}.{name}: {endpoint} has no label {ascii(value)[1:-1]}", hint=listed)
        return Labelled(endpoint, number, predicted, label, known)


async def _body(receive: Receive, headers: Mapping[bytes, bytes], hold: Callable[[int], None]) -> object:
    raw = await bodies.read(receive, limit=_MAX_BYTES, announced=headers.get(b"content-length", b""), hold=hold)
    raw = await bodies.unpacked(raw, headers.get(b"content-encoding", b""), limit=_MAX_BYTES)
    kind = headers.get(b"content-type", b"")
    try:
        if len(raw) > MAX_INLINE_BYTES:
            return await in_thread(BODY_THREADS, decode, raw, kind, takes_bytes=False)
        return decode(raw, kind, takes_bytes=False)
    except (MalformedBody, UnsupportedMedia) as error:
        error.hint = f"send JSON (header content-type: application/json): {_FORM}"
        raise


def _not_served(found: Sequence[Labelled], snapshot: Snapshot) -> dict[str, list[str]]:
    """Return the versions that are not served: replaced ones, whose labels come late, or mistyped ones."""
    served = {(one.identity.endpoint, one.identity.version) for one in snapshot.endpoints.values()}
    gone = sorted({(one.endpoint, one.version) for one in found} - served)
    return {"not_served": [f"{endpoint}/{version}" for endpoint, version in gone]} if gone else {}


def _version(snapshot: Snapshot, url: str, where: str) -> _Version:
    """Return endpoint, version and labels of what ``url`` names. One that was replaced is known by its endpoint: labels
    come late.
    """
    url = snapshot.defaults.get(url, url)
    if url in snapshot.canaries:
        raise InputRefused(
            f"{where}: {url} stands for several versions", hint="x-served-by of the answer says which it was"
        )
    served = snapshot.endpoints.get(url)
    if served is None:
        name, _, version = url.rpartition("/")
        siblings = [one for one in snapshot.endpoints.values() if name and one.identity.endpoint == name]
        if not siblings or not version.isdecimal():
            if url in snapshot.pending:
                snapshot.resolve(url)  # which says why it is not there yet
            raise EndpointNotFound(
                f"{where}: endpoint {ascii(url)[1:-1][:100]} is not served here",
                hint="write endpoint/version, as x-served-by of the answer says",
            )
        labels = tuple(dict.fromkeys(label for one in siblings for label in _labels(one.identity.details)))
        return _Version(name, version, labels, frozenset(labels))
    identity, labels = served.identity, _labels(served.identity.details)
    return _Version(identity.endpoint, identity.version, labels, frozenset(labels))


def _labels(details: Mapping[str, object]) -> tuple[str, ...]:
    found = details.get("labels")
    return tuple(str(label) for label in found) if isinstance(found, list) else ()


def _text(value: object, where: str) -> str:
    if not isinstance(value, str) or not 0 < len(value) <= _MAX_CHARS:
        raise InputRefused(f"{where} must be a text of 1 to {_MAX_CHARS} characters", hint=f"send {_FORM}")
    return value

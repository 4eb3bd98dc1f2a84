"""``POST /v1/feedback``: true labels of answers that were given, one or many; they are counted, nothing else is kept.

A label comes with the answer it is for (version, predicted label, score), which the caller has: any gateway and any
worker can count it, however late it comes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

import orjson

from gateway.call import Reply
from gateway.callers.access import Access
from gateway.callers.rights import FEEDBACK, Caller
from gateway.dataplane.routing.snapshot import Snapshot
from gateway.dataplane.routing.table import RoutingTable
from gateway.edge.http import body as bodies
from gateway.edge.http.edge import Receive, Scope, Send, clean_id, send_reply
from gateway.edge.http.problems import problem
from gateway.edge.rules import FEEDBACK_PATH, told_to
from gateway.errors import EndpointNotFound, GatewayError, InputRefused, MethodNotAllowed, Unavailable
from gateway.health import Health
from gateway.metrics.feedback import MAX_VERSIONS, Labelled
from gateway.protocols.json_body import decode
from gateway.spec import normalize_url
from gateway.trace import new_id

MAX_ITEMS: Final = 1000
_MAX_BYTES: Final = 1 << 20
_MAX_CHARS: Final = 100
_FORM: Final = (
    '{"endpoint": "sentiment/2", "predicted": "POSITIVE", "score": 0.98, "label": "NEGATIVE"}, '
    'or {"feedback": [ … ]} with a list of them'
)

Count = Callable[[Labelled], None]
HasRoom = Callable[[str, str], bool]


class FeedbackRoute:
    """Takes labels; ``takes`` says at which path. ``count`` counts one, if ``has_room(endpoint, version)``; ``access``
    None: anybody may send them.
    """

    def __init__(
        self, table: RoutingTable, health: Health, count: Count, has_room: HasRoom, access: Access | None = None
    ) -> None:
        self._table = table
        self._health = health
        self._count = count
        self._has_room = has_room
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
                raise Unavailable("this gateway has not read its configuration yet", hint="try again", retry_after=1)
            if scope["method"] != "POST":
                raise MethodNotAllowed(f"{scope['method']} is not how labels are sent", hint="use POST")
            raw = await bodies.read(
                receive, limit=_MAX_BYTES, announced=headers.get(b"content-length", b""), hold=lambda _size: None
            )
            raw = await bodies.unpacked(raw, headers.get(b"content-encoding", b""), limit=_MAX_BYTES)
            found = self._read(decode(raw, headers.get(b"content-type", b""), takes_bytes=False), caller)
            for one in found:
                self._count(one)
        except GatewayError as error:
            reply = problem(told_to(caller, error), request_id)
        else:
            reply = Reply(200, [(b"content-type", b"application/json")], orjson.dumps({"counted": len(found)}))
        own = [(b"x-request-id", request_id.encode()), (b"content-length", str(len(reply.content)).encode())]
        await send_reply(scope, send, reply.status, [*reply.headers, *own], reply.content)

    def _read(self, body: object, caller: Caller | None) -> list[Labelled]:
        if not isinstance(body, Mapping):
            raise InputRefused("feedback is an object", hint=f"send {_FORM}")
        several = body.get("feedback")
        if several is None:
            return [self._labelled(body, "feedback", caller)]
        if not isinstance(several, list) or not 0 < len(several) <= MAX_ITEMS:
            raise InputRefused(f"feedback must be a list of 1 to {MAX_ITEMS} objects", hint=f"send {_FORM}")
        return [self._labelled(one, f"feedback[{n}]", caller) for n, one in enumerate(several)]

    def _labelled(self, one: object, where: str, caller: Caller | None) -> Labelled:
        if not isinstance(one, Mapping):
            raise InputRefused(f"{where} is not an object", hint=f"send {_FORM}")
        answer = one.get("answer")
        given: Mapping[str, Any] = answer if isinstance(answer, Mapping) else {}
        predicted = _text(one.get("predicted", given.get("label")), f"{where}.predicted")
        label = _text(one.get("label"), f"{where}.label")
        score = one.get("score", given.get("score"))
        if score is not None and (isinstance(score, bool) or not isinstance(score, int | float) or not 0 <= score <= 1):
            raise InputRefused(f"{where}.score is no number from 0 to 1", hint="leave it out if there is none")
        path = _text(one.get("endpoint"), f"{where}.endpoint")
        version = one.get("version")
        url = normalize_url(path, None if version is None else _text(str(version), f"{where}.version"))
        if caller is not None and self._access is not None:
            self._access.require(caller, FEEDBACK, url)
        endpoint, number, known = _version(self._table.current, url, where)
        for value, name in ((predicted, "predicted"), (label, "label")):
            if known and value not in known:
                listed = ", ".join(known[:10]) + (", …" if len(known) > 10 else "")
                raise InputRefused(f"{where}.{name}: {endpoint} has no label {ascii(value)[1:-1]}", hint=listed)
        if not self._has_room(endpoint, number):
            raise InputRefused(f"{where}: labels of more than {MAX_VERSIONS} versions of {endpoint} are not counted")
        return Labelled(endpoint, number, predicted, label, None if score is None else float(score), known)


def _version(snapshot: Snapshot, url: str, where: str) -> tuple[str, str, tuple[str, ...]]:
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
        return name, version, tuple(dict.fromkeys(label for one in siblings for label in _labels(one.identity.details)))
    return served.identity.endpoint, served.identity.version, _labels(served.identity.details)


def _labels(details: Mapping[str, object]) -> tuple[str, ...]:
    found = details.get("labels")
    return tuple(str(label) for label in found) if isinstance(found, list) else ()


def _text(value: object, where: str) -> str:
    if not isinstance(value, str) or not 0 < len(value) <= _MAX_CHARS:
        raise InputRefused(f"{where} must be a text of 1 to {_MAX_CHARS} characters", hint=f"send {_FORM}")
    return value

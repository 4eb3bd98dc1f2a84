"""``POST /v1/feedback``: the true labels of earlier answers, one or many. Only counts are stored.

A label comes with its version and the predicted label, which the caller has. Any worker of any gateway can therefore
count it, at any later time.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Set
from typing import Annotated, Final, NamedTuple

import orjson
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from gateway.callers.access import Access
from gateway.callers.rights import FEEDBACK, Caller
from gateway.errors import EndpointNotFound, InputRefused, MethodNotAllowed
from gateway.http.exchange import Exchange
from gateway.path.admission import Permits
from gateway.path.call import Reply
from gateway.path.routing import RoutingTable, Snapshot
from gateway.protocols.json_body import decode
from gateway.spec import normalize_url
from gateway.trace import DEFAULT

MAX_ITEMS: Final = 1000
_MAX_BYTES: Final = 1 << 20
_EXAMPLE: Final = {"endpoint": "sentiment/2", "predicted": "POSITIVE", "label": "NEGATIVE"}
_FORM: Final = json.dumps(_EXAMPLE)
OPERATION: Final = {
    "summary": "Send true labels of answers, one or as the list `feedback`", "tags": ["operations"],
    "requestBody": {"required": True, "content": {"application/json": {"schema": {}, "example": _EXAMPLE}}},
    "responses": {
        "200": {
            "description": "All are counted; `not_served` lists versions that are replaced or mistyped",
            "content": {"application/json": {"schema": {}, "example": {"counted": 1}}},
        }
    },
}  # fmt: skip
"""The route in the OpenAPI document."""

Count = Callable[[str, str, str, str, Iterable[str]], None]
"""Counts a label: endpoint, version, predicted and true label, and the version's known labels."""
Text = Annotated[str, Field(min_length=1, max_length=100)]


class Label(BaseModel):
    """The true label of one answer of ``endpoint`` (from ``x-served-by``), which said ``predicted``."""

    model_config = ConfigDict(coerce_numbers_to_str=True)
    endpoint: Text
    version: str = Field("", max_length=100)
    """If ``endpoint`` does not contain it."""
    predicted: Text
    label: Text


class Labels(BaseModel):
    """The true labels of many answers."""

    feedback: list[Label] = Field(min_length=1, max_length=MAX_ITEMS)


class _Version(NamedTuple):
    """What a label is for, and the labels that it has, in their order; none if that is not known."""

    endpoint: str
    version: str
    labels: Mapping[str, None]


class FeedbackRoute:
    """Takes labels. ``count`` counts one; ``access`` None: anybody may send them."""

    def __init__(
        self,
        table: RoutingTable,
        permits: Permits,
        count: Count,
        access: Access | None = None,
    ) -> None:
        self._table = table
        self._permits = permits
        self._count = count
        self._access = access

    async def answer(self, exchange: Exchange, caller: Caller | None = None) -> Reply:
        """Count all labels of a request, or none. Raises ``GatewayError``."""
        if not self._table.current.has_been_read:
            raise self._table.current.missing()
        if exchange.method != "POST":
            raise MethodNotAllowed(f"{exchange.method} is not allowed here", allow="POST")
        permit = self._permits.take(DEFAULT)  # its bytes count among those of requests
        try:
            raw = await exchange.read_body(_MAX_BYTES, permit.hold)
            body = decode(raw, exchange.by_name.get(b"content-type", b""), takes_bytes=False, form=_FORM)
            found = self._read(body, caller)
        finally:
            permit.release()
        for version, predicted, label in found:
            self._count(version.endpoint, version.version, predicted, label, version.labels)
        said = {
            "counted": len(found),
            **_not_served({(one.endpoint, one.version) for one, *_ in found}, self._table.current),
        }
        return Reply(200, [(b"content-type", b"application/json")], orjson.dumps(said))

    def _read(self, body: object, caller: Caller | None) -> list[tuple[_Version, str, str]]:
        """Return version, predicted and true label of each."""
        is_many = isinstance(body, Mapping) and "feedback" in body
        try:
            labels = Labels.model_validate(body if is_many else {"feedback": [body]}).feedback
        except ValidationError as error:
            fault = error.errors(include_url=False)[0]
            where = ".".join(map(str, fault["loc"]))
            raise InputRefused(
                f"{where}: {fault['msg']}", hint=f"send {_FORM}, or a list of them as feedback"
            ) from None
        versions: dict[str, _Version] = {}
        found = []
        for n, one in enumerate(labels):
            url, where = normalize_url(one.endpoint, one.version), f"feedback.{n}"
            if url not in versions:
                if caller is not None and self._access is not None:
                    self._access.require(caller, FEEDBACK, url)
                versions[url] = _version(self._table.current, url, where)
            version = versions[url]
            for value, name in ((one.predicted, "predicted"), (one.label, "label")):
                if version.labels and value not in version.labels:
                    listed = ", ".join([*version.labels][:10]) + (", …" if len(version.labels) > 10 else "")
                    raise InputRefused(
                        f"{where}.{name}: {version.endpoint} has no label {ascii(value)[1:-1]}", hint=listed
                    )  # fmt: skip
            found.append((version, one.predicted, one.label))
        return found


def _not_served(found: Set[tuple[str, str]], snapshot: Snapshot) -> dict[str, list[str]]:
    """Return the versions that are not served: replaced ones, whose labels come late, or mistyped ones."""
    gone = sorted(found - {(one.identity.endpoint, one.identity.version) for one in snapshot.endpoints.values()})
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
    name, _, version = url.rpartition("/")
    if served is not None:
        name, version, found = served.identity.endpoint, served.identity.version, [served]
    else:
        found = [one for one in snapshot.endpoints.values() if version.isdecimal() and one.identity.endpoint == name]
    if not found:
        if url in snapshot.pending:
            snapshot.resolve(url)  # which says why it is not there yet
        raise EndpointNotFound(
            f"{where}: endpoint {ascii(url)[1:-1][:100]} is not served here",
            hint="write endpoint/version, as x-served-by of the answer says",
        )
    return _Version(name, version, dict.fromkeys(label for one in found for label in one.identity.labels))

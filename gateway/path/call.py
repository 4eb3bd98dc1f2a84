"""``Call`` and ``Reply``: the two values between every protocol and the path of a request.

A protocol's ``parse`` makes a ``Call`` of a body, ``serve`` takes it to the endpoint version that answers, and the
call's ``render`` makes the reply. A call knows neither its transport nor, until one was chosen, its endpoint.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple

from gateway.errors import GatewayError
from gateway.handlers.endpoint import Endpoint, Event
from gateway.trace import Trace

Headers = list[tuple[bytes, bytes]]


class Reply(NamedTuple):
    """A reply with headers of its own, in addition to those of every reply of the gateway."""

    status: int
    headers: Headers
    content: bytes


Refuse = Callable[[GatewayError, str], Reply]
"""``refuse(error, request_id)`` returns the error in the form of a protocol."""


def labels(trace: Trace) -> Headers:
    """Return the headers that describe a request in every answer: id, route and stage times in milliseconds."""
    prepare, infer = trace.prepare_ns, trace.infer_ns
    times = {
        b"x-total-time": trace.total_ns, b"x-tokenization-time": prepare, b"x-queue-time": trace.queue_ns,
        b"x-inference-time": infer, b"x-compute-time": prepare + infer + trace.finish_ns,
    }  # fmt: skip
    return [
        (b"x-request-id", trace.request_id.encode()),
        (b"x-route", trace.route.encode()),
        *((name, b"%.3f" % (ns * 1e-6)) for name, ns in times.items()),
    ]


class Call:
    """What is asked, parsed by a protocol and used once. A protocol subclasses it and sets ``path``.

    ``serve`` sets what comes with the transport (``key``), and then calls, in this order, from the event loop:
    ``question``, once for each version that is tried (again for the stable one if a canary fails); ``piece``, for each
    piece of a streamed answer; and ``render``.
    """

    path = ""
    """The endpoint's url, or a canary's name."""
    key: str | None = None
    """The routing key, which keeps a caller on one side of a canary."""
    timeout = 0.0
    """Seconds that the body asks for; 0: none."""
    streams = False
    """Whether the caller wants a streamed answer, if the endpoint can stream. ``question`` may set it."""
    end = b""
    """The bytes that end a successful stream."""
    needs_outputs = False
    """Whether ``render`` needs the model's own outputs, which a cached answer does not have."""

    def question(self, endpoint: Endpoint) -> Any:
        """Return the request for ``endpoint``: a body, ``Prepared`` rows or ``RawTensors``; see its handler.

        Raises ``GatewayError`` if the endpoint cannot be used with this protocol.
        """
        raise NotImplementedError

    def render(self, answer: Any, endpoint: Endpoint, trace: Trace) -> Any:
        """Return the reply: the bytes of a JSON document, a ``Reply``, or another value that its transport writes.

        ``endpoint`` is the version that answered; ``trace`` has the model's own outputs, if its handler has them.
        Raises ``GatewayError`` if this protocol cannot express the answer.
        """
        raise NotImplementedError

    def piece(self, event: Event) -> bytes:
        """Return the bytes of one piece of a streamed answer."""
        raise NotImplementedError


Parse = Callable[[bytes, Mapping[bytes, bytes]], Call]
"""``parse(body, headers)``: parses a request of one protocol. Raises ``GatewayError``."""
TEXT_BYTES: Final = 2 << 20
"""The most bytes of JSON with a few texts. The parser holds the interpreter's lock: what is larger delays every other
request.
"""


class Route(NamedTuple):
    """How requests to one address are parsed and refused; ``http.addresses`` has all of them."""

    parse: Parse
    refuse: Refuse
    path: str | None = None
    """The endpoint, if the address names one: if it does not exist, the body is not read."""
    max_json: int = TEXT_BYTES
    max_other: int = 0
    """The most bytes of a body that is not JSON by its content type; 0: as many, because the type is not looked at."""


def _transport(*_: object) -> Any:
    raise NotImplementedError


UNADDRESSED: Final = Route(_transport, _transport)
"""The route of requests without an address, over gRPC and of the gateway's own: their transport reads and refuses."""


class InternalCall(Call):
    """A call without a protocol: a hook's ``send_request``."""

    def __init__(self, path: str, body: object) -> None:
        self.path = path
        self._body = body

    def question(self, endpoint: Endpoint) -> Any:
        """See ``Call.question``."""
        del endpoint
        return self._body

    def render(self, answer: Any, endpoint: Endpoint, trace: Trace) -> Any:
        """Return the answer unchanged."""
        del endpoint, trace
        return answer

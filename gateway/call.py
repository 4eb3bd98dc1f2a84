"""What a caller asks, and what goes back: the two values between every protocol and the data plane.

An edge (HTTP, gRPC) has bytes. A protocol's ``parse`` makes a ``Call`` of them; ``dataplane.submit`` takes it to the
endpoint version that answers; the call's own ``render`` makes the reply that the edge writes. A call knows no
transport, and no endpoint before one was chosen for it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from gateway.endpoints.endpoint import Endpoint, Event
from gateway.errors import GatewayError, InputRefused
from gateway.trace import Trace

Headers = list[tuple[bytes, bytes]]


class Reply(NamedTuple):
    """A reply with headers of its own, apart from those that every answer of the gateway has."""

    status: int
    headers: Headers
    content: bytes


Refuse = Callable[[GatewayError, str], Reply]
"""``refuse(error, request_id)``: a failure in a protocol's own words."""


class Call:
    """One question, read by a protocol and used once. A protocol subclasses it and sets ``path``.

    The edge sets what comes with the transport: ``key``, ``pin``, ``timeout``, ``refuse``. The data plane then calls,
    in this order and all from the event loop: ``body_key``, if a canary has to choose and there is no ``key``;
    ``question``, once for each version that is tried (the stable one too, when a canary fails); ``render``, once, with
    the answer; or ``refuse``, once, with the error. For an answer in pieces, ``piece`` for each of them.
    """

    path = ""
    """The endpoint's url, or a canary's name."""
    key: str | None = None
    """Keeps a caller on one side of a canary."""
    pin = ""
    """The url of exactly the version that is to answer, past every canary."""
    timeout = 0.0
    """Seconds in which an answer is of use; 0: the gateway's own limit. A protocol may set what its caller says; the
    edge lowers it by what its transport says.
    """
    refuse: Refuse | None = None
    """None: the edge reads ``InFlight.error`` itself."""
    streams = False
    """Whether the caller wants pieces; counts only if the endpoint can make them, and may be set by ``question``."""
    end = b""
    """What closes a stream that went well."""
    needs_outputs = False
    """Whether ``render`` needs the model's own outputs, so that no remembered answer will do."""

    def body_key(self) -> str | None:
        """Return the routing key inside the body, if there is one."""
        return None

    def question(self, endpoint: Endpoint) -> Any:
        """Return what ``endpoint`` is asked: its own body, ``Prepared`` rows, ``RawTensors``; see its handler.

        Raises ``GatewayError`` if it cannot be asked in this protocol.
        """
        raise NotImplementedError

    def render(self, answer: Any, endpoint: Endpoint, trace: Trace, outputs: Any) -> Any:
        """Return the reply: the bytes of a JSON document, a ``Reply``, or whatever this call's own edge writes.

        ``endpoint`` is the version that has answered, ``outputs`` the model's own outputs, if its handler has them.
        Raises ``GatewayError`` if the answer has no form in this protocol.
        """
        raise NotImplementedError

    def piece(self, event: Event) -> bytes:
        """Return one piece of a streamed answer."""
        raise NotImplementedError


class InternalCall(Call):
    """A question of the gateway's own (a hook's ``send_request``, a shadow, a trial): no protocol on either side."""

    def __init__(self, path: str, body: object) -> None:
        self.path = path
        self._body = body

    def question(self, endpoint: Endpoint) -> Any:
        """See ``Call.question``."""
        if isinstance(self._body, bytes) and not endpoint.takes_bytes:
            raise InputRefused("the body is not JSON, which this version takes")
        return self._body

    def render(self, answer: Any, endpoint: Endpoint, trace: Trace, outputs: Any) -> Any:
        """Return the answer as it is."""
        del endpoint, trace, outputs
        return answer

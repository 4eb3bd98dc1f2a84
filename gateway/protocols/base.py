"""What a request form gives the edges (HTTP, gRPC): which endpoint is asked, with what, and how its answer is told."""

from __future__ import annotations

from typing import Any, Protocol

from gateway.dataplane.submit import Via
from gateway.endpoints.endpoint import Endpoint
from gateway.trace import Trace

Header = tuple[bytes, bytes]


class Call(Protocol):
    """One request that has been read; made by a form, used once."""

    @property
    def path(self) -> str:
        """The endpoint's url, or a canary's name."""

    def body(self, endpoint: Endpoint) -> object:
        """Return the endpoint's own body; raises ``GatewayError`` where the endpoint cannot be asked in this form."""

    @property
    def via(self) -> Via | None:
        """How to ask the endpoint, where that is not by its own body."""

    def tell(self, answer: Any, endpoint: Endpoint, trace: Trace) -> tuple[list[Header], Any]:
        """Return headers and content of the answer: bytes, or what JSON can be made of."""

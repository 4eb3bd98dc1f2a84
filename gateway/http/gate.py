"""Checks the caller at addresses that are not for inference, before their routes run."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from gateway.callers.access import Access
from gateway.callers.rights import Caller
from gateway.errors import EndpointNotFound, GatewayError, NotPermitted
from gateway.http.bridge import Scope, Send, names_of, send_reply
from gateway.http.problems import is_openai, oip_problem, openai_problem, problem
from gateway.local_names import are_local
from gateway.path.rights import OPEN, rule_of
from gateway.trace import clean_id


def not_for_us() -> NotPermitted:
    """Return the refusal of a request for a name that this gateway does not answer to."""
    return NotPermitted(
        "this gateway was started for programs of this machine, and answers only to its local names",
        because="foreign_host",
        hint="ask http://localhost; if a proxy or tunnel forwards to it, start it with "
        "TRITON_GATEWAY_ALLOW_ANONYMOUS=true",
    )


class Gate:
    """Checks rights. ``access`` None: every caller may ask.

    ``local_names``: if given, only requests for loopback names and these are answered.
    """

    def __init__(self, access: Access | None, local_names: Collection[str] | None = None) -> None:
        self._access = access
        self._local_names = local_names

    def is_for_us(self, headers: Sequence[tuple[bytes, bytes]]) -> bool:
        """Return whether the request's ``Host`` is a name that this gateway answers to."""
        return self._local_names is None or are_local(headers, self._local_names)

    def caller_of(self, scope: Scope) -> Caller | None:
        """Return the caller; None if callers need not be known. Raises ``GatewayError``."""
        access = self._access
        if access is None:
            return None
        path = scope["path"]
        rule = rule_of(path)
        if rule is not None and rule.operation == OPEN:
            return None
        headers = dict(scope["headers"])
        if len(headers) != len(scope["headers"]):
            access.check_once(name for name, _ in scope["headers"])
        caller = access.caller_of(headers, names_of(scope), is_read=scope["method"] in ("GET", "HEAD"))
        if rule is None:
            raise EndpointNotFound(f"nothing is at {ascii(path)[1:-1][:100]}")
        access.require(caller, rule.operation, rule.endpoint)
        return caller

    async def refuse(self, scope: Scope, send: Send, error: GatewayError) -> None:
        """Answer with a refusal in the form of the address's protocol."""
        path: str = scope["path"]
        write = openai_problem if is_openai(path) else oip_problem if path.startswith("/v2") else problem
        headers = dict(scope["headers"])
        status, lines, content = write(error, clean_id(headers.get(b"x-request-id", b"")))
        if status == 401 and b"text/html" in headers.get(b"accept", b""):
            # The browser then asks its user for a password: the key (see ``Access.caller_of``).
            lines = [*lines, (b"www-authenticate", b'Basic realm="triton-gateway"')]
        await send_reply(send, status, [*lines, (b"content-length", str(len(content)).encode())], content)

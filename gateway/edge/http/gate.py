"""The check of callers at addresses where nothing is inferred: before any of them does anything."""

from __future__ import annotations

from gateway.callers.access import Access
from gateway.callers.rights import Caller
from gateway.edge.http.edge import Scope, Send, clean_id, names_of, send_reply
from gateway.edge.http.problems import oip_problem, openai_problem, problem
from gateway.edge.rules import OPEN, OPERATORS, rule_of
from gateway.errors import EndpointNotFound, GatewayError


class Gate:
    """Lets callers through to what they have the right to; ``access`` None lets anybody through.

    ``admin_port``: where what tells of the whole gateway is answered, to whoever reaches it, and nothing else is; 0 for
    no such port.
    """

    def __init__(self, access: Access | None, admin_port: int = 0) -> None:
        self._access = access
        self.admin_port = admin_port

    def is_admin(self, scope: Scope) -> bool:
        """Return whether a request came through the operators' port."""
        return bool(self.admin_port) and (scope.get("server") or ("", 0))[1] == self.admin_port

    async def caller_of(self, scope: Scope) -> Caller | None:
        """Return who asks; None if nobody has to be known. Raises ``GatewayError``."""
        access = self._access
        if access is None and not self.admin_port:
            return None
        path = scope["path"]
        rule = rule_of(path)
        if self.admin_port:
            is_theirs = rule is not None and rule.operation in OPERATORS
            if self.is_admin(scope):
                if is_theirs or (rule is not None and rule.operation == OPEN):
                    return None
                raise EndpointNotFound(f"{ascii(path)[1:-1][:100]} is not on this port", hint="ask the other one")
            if is_theirs:
                raise EndpointNotFound(f"{ascii(path)[1:-1][:100]} is on a port of its own", hint="ask an operator")
        if access is None:
            return None
        if rule is not None and rule.operation == OPEN:
            return None
        headers = dict(scope["headers"])
        if len(headers) != len(scope["headers"]):
            access.check_once(name for name, _ in scope["headers"])
        caller = await access.caller(headers, names_of(scope), is_read=scope["method"] in ("GET", "HEAD"))
        if rule is None:
            raise EndpointNotFound(f"nothing is at {ascii(path)[1:-1][:100]}")
        access.require(caller, rule.operation, rule.endpoint)
        return caller

    async def refuse(self, scope: Scope, send: Send, error: GatewayError) -> None:
        """Answer with a refusal, in the words of the address's protocol."""
        path: str = scope["path"]
        write = openai_problem if path.startswith("/v1/models") else oip_problem if path.startswith("/v2") else problem
        headers = dict(scope["headers"])
        status, lines, content = write(error, clean_id(headers.get(b"x-request-id", b"")))
        if status == 401 and b"text/html" in headers.get(b"accept", b""):
            # A browser then asks its person, who types a key as password (see ``Access.caller_of``).
            lines = [*lines, (b"www-authenticate", b'Basic realm="triton-gateway"')]
        await send_reply(scope, send, status, [*lines, (b"content-length", str(len(content)).encode())], content)

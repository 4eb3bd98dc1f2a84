"""Checks the caller at addresses that are not for inference, before their routes run."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from gateway.callers.access import Access
from gateway.callers.rights import Caller
from gateway.errors import GatewayError, NotPermitted
from gateway.http.exchange import Exchange
from gateway.http.problems import nothing_at, oip_problem, openai_problem, problem, tei_problem
from gateway.local_names import are_local
from gateway.path.call import Reply
from gateway.path.rights import INFO, OPEN, TEI, V1_MODELS, rule_of


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

    def caller_of(self, exchange: Exchange) -> Caller | None:
        """Return the caller; None if callers need not be known. Raises ``GatewayError``."""
        if not self.is_for_us(exchange.headers):
            raise NotPermitted(
                "this gateway was started for programs of this machine, and answers only to its local names",
                because="foreign_host",
                hint="ask http://localhost; if a proxy or tunnel forwards to it, start it with "
                "TRITON_GATEWAY_ALLOW_ANONYMOUS=true",
            )
        access, path = self._access, exchange.path
        if access is None:
            return None
        rule = rule_of(path)
        if rule is not None and rule.operation == OPEN:
            return None
        caller = exchange.caller_of(access, is_read=exchange.method in ("GET", "HEAD"))
        if rule is None:
            raise nothing_at(path)
        access.require(caller, rule.operation, rule.endpoint)
        return caller


def refusal(exchange: Exchange, error: GatewayError) -> Reply:
    """Return a refusal in the form of the address's protocol."""
    path = exchange.path
    if path == INFO or path.startswith(TEI):
        write = tei_problem
    else:
        write = openai_problem if path.startswith(V1_MODELS) else oip_problem if path.startswith("/v2") else problem
    status, lines, content = write(error, exchange.request_id)
    if status == 401 and b"text/html" in exchange.by_name.get(b"accept", b""):
        # The browser then asks its user for a password: the key (see ``Access.caller_of``).
        lines = [*lines, (b"www-authenticate", b'Basic realm="triton-gateway"')]
    return Reply(status, lines, content)

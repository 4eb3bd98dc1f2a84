"""Authentication: the one place where credentials become a ``Caller``, for every transport.

Callers come from sources (a file of keys, the registry, an issuer). ``put`` replaces all that a source knows; its last
good state stays until then. Recent callers are remembered until a source changes or they expire, so that most requests
need no hash, and no remembered caller outlives a revocation.
"""

from __future__ import annotations

import base64
import binascii
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Final

from gateway.callers.quotas import Limits, Quota, Quotas
from gateway.callers.rights import OPERATIONS, Caller
from gateway.errors import NotAuthenticated, NotPermitted
from gateway.trace import Trace

if TYPE_CHECKING:
    from gateway.callers.shared_quotas import SharedQuotas  # its library is an extra

ByName = Mapping[bytes, bytes]
"""Headers by name, in lower case."""

Names = tuple[str, ...]
"""The common name and the alternative names in a client's certificate."""

CREDENTIALS: Final = (b"authorization", b"x-api-key")
"""Headers with credentials."""

ANONYMOUS: Final = Caller("anonymous", "anonymous", operations=frozenset(OPERATIONS))
"""The caller of requests without credentials, if they are allowed."""

_HINT: Final = "send `Authorization: Bearer KEY` or `x-api-key: KEY`"
_BEARER: Final = b"bearer "
_MAX_RECENT: Final = 1024
_MAX_RECENT_BYTES: Final = 8192
_BASIC: Final = b"basic "


@dataclass(frozen=True, slots=True, kw_only=True)
class Known:
    """The callers that a source knows: nobody, but for what a subclass finds."""

    certificates: tuple[tuple[str, Caller], ...] = ()
    """Patterns of names in clients' certificates, each with its caller; the first that matches counts."""
    ended: frozenset[str] = frozenset()
    """Revoked names, whatever source knows them: of certificates, subjects and token ids."""
    quotas: Mapping[str, Limits] = field(default_factory=dict)
    """Limits by tenant."""

    def summary(self) -> str:
        """Return a short summary for the log and the status."""
        return "nobody"

    def find(self, shown: bytes, now: float) -> Caller | None:  # noqa: ARG002 - for subclasses
        """Return the caller with these credentials; None if this source has none. Raises ``NotAuthenticated``."""
        return None


class Access:
    """Authenticates callers and checks their rights. One per event loop.

    ``count(reason)`` is called for each refusal, ``over(tenant, reason)`` for each request over a quota, and
    ``used(tenant, endpoint, tokens in, tokens out)`` for each that was answered, whole or in part. ``clock`` returns
    Unix seconds.
    """

    def __init__(
        self,
        *,
        allows_anonymous: bool = False,
        count: Callable[[str], None] = lambda _reason: None,
        over: Callable[[str, str], None] = lambda _tenant, _reason: None,
        used: Callable[[str, str, int, int], None] = lambda *_: None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._allows_anonymous = allows_anonymous
        self._count = count
        self._used = used
        self._clock = clock
        self.quotas = Quotas(over)
        self.shared_quotas: SharedQuotas | None = None
        """Set if requests of limited tenants ask a store."""
        self._has_quotas = False
        self._sources: dict[str, Known] = {}
        self._certificates: tuple[tuple[str, Caller], ...] = ()
        self._ended: frozenset[str] = frozenset()
        self._recent: dict[bytes | Names, Caller] = {}
        """Callers by recent ``authorization`` headers, and by names of certificates."""

    # --- sources ------------------------------------------------------------------------------------------------------

    def put(self, source: str, known: Known) -> None:
        """Replace all that a source knows."""
        self._sources[source] = known
        self._certificates = tuple(one for each in self._sources.values() for one in each.certificates)
        self._ended = frozenset().union(*(each.ended for each in self._sources.values()))
        limits = {tenant: one for each in self._sources.values() for tenant, one in each.quotas.items()}
        self._has_quotas = bool(limits)
        self.quotas.configure(limits)
        self._recent.clear()

    # --- callers ------------------------------------------------------------------------------------------------------

    def caller_of(self, headers: ByName, names: Names = (), *, is_read: bool = False) -> Caller:
        """Return the caller with these headers, or else with these certificate ``names``.

        Raises ``NotAuthenticated``, and counts it.

        ``is_read``: the request only reads, so a key that a browser stores as a password (``Authorization: Basic``) is
        accepted as well.
        """
        sent = headers.get(b"authorization")
        if sent is not None:
            recent = self._recent.get(sent)
            if recent is not None and recent.expires > self._clock():
                return recent
        try:
            shown = _credentials(headers, is_read=is_read)
            if shown is None:
                if names:
                    return self._of_certificate(names)
                if self._allows_anonymous:
                    return ANONYMOUS
                raise NotAuthenticated(
                    "the request has no key, token or certificate", because="no_credentials", hint=_HINT
                )
            caller = self._known(shown)
        except NotAuthenticated as error:
            self._count(error.because)
            raise
        if sent is not None and len(sent) <= _MAX_RECENT_BYTES and sent[:7].lower() == _BEARER:
            self._remember(sent, caller)
        return caller

    def _remember(self, shown: bytes | Names, caller: Caller) -> None:
        if len(self._recent) >= _MAX_RECENT:
            self._recent.clear()
        self._recent[shown] = caller

    def check_once(self, names: Iterable[bytes]) -> None:
        """Raise ``NotAuthenticated``, and count it, if a header with credentials occurs twice in ``names``: a proxy may
        have checked the other one.
        """
        sent = [name for name in names if name in CREDENTIALS]
        if len(sent) > len({*sent}):
            self._count("ambiguous_credentials")
            raise NotAuthenticated(
                "a header with credentials was sent twice", because="ambiguous_credentials", hint=_HINT
            )

    def quota_of(self, caller: Caller) -> Quota | None:
        """Return the quota of the caller's tenant in this worker; None if it has no limits."""
        return self.quotas.of(caller.tenant, time.monotonic()) if self._has_quotas else None

    def ended(self, trace: Trace) -> None:
        """Settle the quota of a request that has ended, and count its tokens; a listener of the data plane."""
        caller = trace.caller
        if type(caller) is not Caller:
            return
        tokens, generated = trace.tokens, trace.generated_tokens
        if trace.charged:
            trace.quota.settle(trace.charged, tokens + generated)
            trace.charged = 0
        if trace.outcome == "ok" or generated:  # an interrupted stream counts for what it sent
            self._used(caller.tenant, trace.endpoint, tokens, generated)

    def require(self, caller: Caller, operation: str, path: str | None = None) -> None:
        """Raise ``NotPermitted``, and count it, unless ``caller`` may do this, on the endpoint ``path`` if given."""
        if operation not in caller.operations:
            because, message = "operation_not_permitted", f"this caller lacks the right {operation}"
        elif path is not None and not caller.reaches(path):
            # Unnamed: a caller that named none (``/predict``) does not learn which endpoint is served.
            because, message = "endpoint_not_permitted", f"this caller's right {operation} does not cover this endpoint"
        else:
            return
        self._count(because)
        raise NotPermitted(message, because=because, hint="ask whoever gave out the key for it")

    def _known(self, shown: bytes) -> Caller:
        now = self._clock()
        for known in self._sources.values():
            caller = known.find(shown, now)
            if caller is not None:
                self._check_end(caller.name, *caller.also)
                return caller
        raise NotAuthenticated(
            "the key is unknown", because="unknown_key", hint="ask the operator for one (`triton-gateway keys create`)"
        )

    def _of_certificate(self, names: Names) -> Caller:
        """Return the caller of a certificate that TLS has verified. Raises ``NotAuthenticated``."""
        recent = self._recent.get(names)
        if recent is not None:
            return recent
        self._check_end(*names)
        callers = (who for pattern, who in self._certificates if any(fnmatchcase(name, pattern) for name in names))
        caller = next(callers, None)
        if caller is None:
            if self._certificates:
                raise NotAuthenticated(
                    f"the certificate of {ascii(names[0])[1:-1][:100]} belongs to no known caller",
                    because="unknown_certificate",
                )
            caller = Caller(names[0], names[0][:100], operations=frozenset(OPERATIONS))
        self._remember(names, caller)
        return caller

    def _check_end(self, *names: str) -> None:
        if not self._ended.isdisjoint(names):
            raise NotAuthenticated("this caller was revoked", because="revoked", hint="ask an operator of the gateway")


def _credentials(headers: ByName, *, is_read: bool) -> bytes | None:
    sent = headers.get(b"authorization", b"")
    kind = sent[:7].lower()
    if kind == _BEARER:
        return sent[7:].strip() or None
    key = headers.get(b"x-api-key", b"").strip()
    if key:
        return key
    if is_read and kind.startswith(_BASIC):
        with_name = b""
        try:
            with_name = base64.b64decode(sent[6:].strip(), validate=True)
        except (binascii.Error, ValueError):
            return sent  # no known key: it is refused as unknown
        return with_name.partition(b":")[2] or None
    return sent or None

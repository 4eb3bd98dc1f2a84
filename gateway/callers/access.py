"""Who is let in: the one place where credentials become a ``Caller``, for every transport.

Callers come from sources (a file of keys, …), each of which is put in as a whole (``put``); the last good state of one
stays until a newer one is. Whoever remembers what credentials meant is told when that may have changed (``on_change``):
nothing that was remembered outlives a revocation.
"""

from __future__ import annotations

import base64
import binascii
import math
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Mapping
from fnmatch import fnmatchcase
from typing import Final, Protocol

from gateway.callers.quotas import Limits, Quota, Quotas
from gateway.callers.rights import OPERATIONS, Caller
from gateway.errors import NotAuthenticated, NotPermitted

ByName = Mapping[bytes, bytes]
"""Headers by their names in lower case."""

Names = tuple[str, ...]
"""What a client's certificate calls it: its common name and its alternative names."""

CREDENTIALS: Final = (b"authorization", b"x-api-key")
"""Headers that say who asks."""

ANONYMOUS: Final = Caller("anonymous", "anonymous", operations=frozenset(OPERATIONS))
"""Who shows no credentials, where that is allowed."""

_HINT: Final = "send `Authorization: Bearer KEY` or `x-api-key: KEY`"
_BEARER: Final = b"bearer "
_MAX_RECENT: Final = 1024
_MAX_RECENT_BYTES: Final = 8192
_BASIC: Final = b"basic "


class Known(Protocol):
    """What a source of callers knows; immutable."""

    @property
    def certificates(self) -> tuple[tuple[str, Caller], ...]:
        """Patterns of names in clients' certificates, and who shows one."""
        ...

    @property
    def ended(self) -> frozenset[str]:
        """Names that nobody is known by any more."""
        ...

    @property
    def quotas(self) -> Mapping[str, Limits]:
        """Limits by tenant."""
        ...

    def told(self) -> str:
        """Return what there is, for the log and the status."""
        ...

    def ends(self) -> Iterable[float]:
        """Return when callers end (Unix seconds)."""
        ...

    def find(self, shown: bytes, now: float) -> Caller | None:
        """Return who shows this; None if this source does not know it. Raises ``NotAuthenticated``."""
        ...


class Access:
    """Who may come in. One per event loop.

    ``count`` is told why somebody may not, ``over`` which tenant is over which limit; ``clock`` gives Unix seconds.
    """

    def __init__(
        self,
        *,
        allows_anonymous: bool = False,
        count: Callable[[str], None] = lambda _reason: None,
        over: Callable[[str, str], None] = lambda _tenant, _reason: None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._allows_anonymous = allows_anonymous
        self._count = count
        self._clock = clock
        self.quotas = Quotas(over)
        self._has_quotas = False
        self._sources: dict[str, Known] = {}
        self._certificates: tuple[tuple[str, Caller], ...] = ()
        self._ended: frozenset[str] = frozenset()
        self._recent: dict[bytes, Caller] = {}
        """Who has sent an ``authorization`` lately, so that most requests are not hashed for."""
        self._recent_names: dict[Names, Caller] = {}
        """The same for certificates."""
        self._listeners: list[Callable[[], None]] = [self._recent.clear, self._recent_names.clear]
        self.renew: Callable[[str], Awaitable[bool]] | None = None
        """Looks once more at a source (by name) that may know by now what it did not; see ``caller``."""
        self._next_end = math.inf

    # --- what is known ------------------------------------------------------------------------------------------------

    def put(self, source: str, known: Known) -> None:
        """Take over all that a source knows, in the place of what it knew."""
        self._sources[source] = known
        self._certificates = tuple(one for each in self._sources.values() for one in each.certificates)
        self._ended = frozenset().union(*(each.ended for each in self._sources.values()))
        limits = {tenant: one for each in self._sources.values() for tenant, one in each.quotas.items()}
        self._has_quotas = bool(limits)
        self.quotas.configure(limits, None, time.monotonic())
        self._changed()

    def on_change(self, forget: Callable[[], None]) -> None:
        """Have ``forget`` called whenever credentials may mean something else than before."""
        self._listeners.append(forget)

    def tick(self) -> None:
        """Look whether somebody's time has ended; to be called every second or so."""
        if self._clock() >= self._next_end:
            self._changed()

    def _changed(self) -> None:
        now = self._clock()
        ends = (end for known in self._sources.values() for end in known.ends())
        self._next_end = min((end for end in ends if end > now), default=math.inf)
        for forget in self._listeners:
            forget()

    # --- who asks -----------------------------------------------------------------------------------------------------

    def caller_of(self, headers: ByName, names: Names = (), *, is_read: bool = False, counts: bool = True) -> Caller:
        """Return who sends these headers, on a connection whose client is called ``names`` by its certificate.

        Raises ``NotAuthenticated``, which is counted if it ``counts``. What is shown in a header counts before the
        certificate.

        ``is_read``: nothing is changed or computed for the answer, so that what a browser keeps of a person's key
        (``Authorization: Basic``, the key as password) will do.
        """
        sent = headers.get(b"authorization")
        if sent is not None:
            recent = self._recent.get(sent)
            if recent is not None:
                return recent
        try:
            shown = _credentials(headers, is_read=is_read)
            if shown is None:
                if names:
                    return self._of_certificate(names)
                if self._allows_anonymous:
                    return ANONYMOUS
                raise NotAuthenticated("this gateway answers callers it knows", because="no_credentials", hint=_HINT)
            caller = self._known(shown)
        except NotAuthenticated as error:
            if counts:
                self._count(error.because)
            raise
        if sent is not None and len(sent) <= _MAX_RECENT_BYTES and sent[:7].lower() == _BEARER:
            if len(self._recent) >= _MAX_RECENT:
                self._recent.clear()
            self._recent[sent] = caller
        # Whoever asks may remember the caller: a token's end is not among those of the sources.
        self._next_end = min(self._next_end, caller.expires)
        return caller

    def check_once(self, names: Iterable[bytes], *, counts: bool = True) -> None:
        """Raise ``NotAuthenticated``, counted if it ``counts``, if credentials are twice among headers' ``names``:
        a proxy may have looked at the other ones.
        """
        if any(several > 1 for several in Counter(name for name in names if name in CREDENTIALS).values()):
            if counts:
                self._count("ambiguous_credentials")
            raise NotAuthenticated("credentials are there twice", because="ambiguous_credentials", hint=_HINT)

    def recent(self, headers: ByName) -> Caller | None:
        """Return who has sent the same ``authorization`` lately; None if nobody has, which says nothing."""
        return self._recent.get(headers.get(b"authorization", b""))

    async def caller(self, headers: ByName, names: Names = (), *, is_read: bool = False) -> Caller:
        """Do what ``caller_of`` does; wait a little for the keys of whoever vouches for callers, if they are new."""
        try:
            return self.caller_of(headers, names, is_read=is_read)
        except NotAuthenticated as error:
            if not error.ask_again or self.renew is None or not await self.renew(error.ask_again):
                raise
        return self.caller_of(headers, names, is_read=is_read)

    def quota_of(self, caller: Caller) -> Quota | None:
        """Return what the caller's tenant has used here; None if it has no limits."""
        return self.quotas.of(caller.tenant, time.monotonic()) if self._has_quotas else None

    def require(self, caller: Caller, operation: str, path: str | None = None) -> None:
        """Raise ``NotPermitted``, and count it, unless ``caller`` may do this; see ``Caller.require``."""
        try:
            caller.require(operation, path)
        except NotPermitted as error:
            self._count(error.because)
            raise

    def _known(self, shown: bytes) -> Caller:
        now = self._clock()
        for known in self._sources.values():
            caller = known.find(shown, now)
            if caller is not None:
                self._check_end(caller.name, *caller.also)
                return caller
        raise NotAuthenticated("nobody is known by this key", because="unknown_key", hint=_HINT)

    def _of_certificate(self, names: Names) -> Caller:
        """Return who shows a certificate, which TLS has verified."""
        recent = self._recent_names.get(names)
        if recent is not None:
            return recent
        self._check_end(*names)
        callers = (who for pattern, who in self._certificates if any(fnmatchcase(name, pattern) for name in names))
        caller = next(callers, None)
        if caller is None:
            if self._certificates:
                raise NotAuthenticated(
                    f"nobody is known by the certificate of {ascii(names[0])[1:-1][:100]}",
                    because="unknown_certificate",
                )
            caller = Caller(names[0], names[0][:100], operations=frozenset(OPERATIONS))
        if len(self._recent_names) >= _MAX_RECENT:
            self._recent_names.clear()
        self._recent_names[names] = caller
        return caller

    def _check_end(self, *names: str) -> None:
        if not self._ended.isdisjoint(names):
            raise NotAuthenticated("this caller was revoked", because="revoked", hint="ask whoever runs the gateway")


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
            return sent  # it is something, and nobody is known by it
        return with_name.partition(b":")[2] or None
    return sent or None

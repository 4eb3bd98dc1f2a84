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
from collections.abc import Callable, Mapping
from typing import Final

from gateway.callers.keys import Keys, digest, is_key
from gateway.callers.rights import OPERATIONS, Caller
from gateway.errors import NotAuthenticated, NotPermitted

ByName = Mapping[bytes, bytes]
"""Headers by their names in lower case."""

ANONYMOUS: Final = Caller("anonymous", "anonymous", operations=frozenset(OPERATIONS))
"""Who shows no credentials, where that is allowed."""

_HINT: Final = "send `Authorization: Bearer KEY` or `x-api-key: KEY`"
_BEARER: Final = b"bearer "
_MAX_RECENT: Final = 1024
_MAX_RECENT_BYTES: Final = 8192
_BASIC: Final = b"basic "


class Access:
    """Who may come in. ``count`` is told why somebody may not; ``clock`` gives Unix seconds. One per event loop."""

    def __init__(
        self,
        *,
        allows_anonymous: bool = False,
        count: Callable[[str], None] = lambda _reason: None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._allows_anonymous = allows_anonymous
        self._count = count
        self._clock = clock
        self._peppers: dict[str, bytes] = {}
        self._keys: dict[str, Keys] = {}
        self._recent: dict[bytes, Caller] = {}
        """Who has sent an ``authorization`` lately, so that most requests are not hashed for."""
        self._listeners: list[Callable[[], None]] = [self._recent.clear]
        self._next_end = math.inf

    # --- what is known ------------------------------------------------------------------------------------------------

    def put(self, source: str, keys: Keys, pepper: bytes) -> None:
        """Take over all keys of a source, in the place of those it had."""
        self._keys[source] = keys
        self._peppers[source] = pepper
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
        ends = (caller.expires for keys in self._keys.values() for caller in keys.callers.values())
        self._next_end = min((end for end in ends if end > now), default=math.inf)
        for forget in self._listeners:
            forget()

    # --- who asks -----------------------------------------------------------------------------------------------------

    def caller_of(self, headers: ByName, *, is_read: bool = False, counts: bool = True) -> Caller:
        """Return who sends these headers. Raises ``NotAuthenticated``, which is counted if it ``counts``.

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
        return caller

    def require(self, caller: Caller, operation: str, path: str | None = None) -> None:
        """Raise ``NotPermitted``, and count it, unless ``caller`` may do this; see ``Caller.require``."""
        try:
            caller.require(operation, path)
        except NotPermitted as error:
            self._count(error.because)
            raise

    def _known(self, shown: bytes) -> Caller:
        if is_key(shown):
            for source, keys in self._keys.items():
                found = digest(self._peppers[source], shown)
                # Looked up by what only the pepper's holder can compute: how long it takes tells nothing of a key.
                caller = keys.callers.get(found)
                if caller is None:
                    continue
                if found in keys.revoked:
                    raise NotAuthenticated("this key was revoked", because="revoked", hint="ask for a new one")
                if caller.expires <= self._clock():
                    raise NotAuthenticated("this key has expired", because="expired", hint="ask for a new one")
                return caller
        raise NotAuthenticated("nobody is known by this key", because="unknown_key", hint=_HINT)


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

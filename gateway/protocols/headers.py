"""Headers that come from outside: what a hook or a bundle names must not end the line it is written in.

Checked here, once, before an answer is made of them; the writers of answers rely on it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

from gateway.errors import HookFailed

_NAME: Final = re.compile(rb"[!#$%&'*+.^_`|~0-9A-Za-z-]+").fullmatch
_VALUE: Final = re.compile(rb"[\t\x20-\x7e\x80-\xff]*").fullmatch
_THE_CONNECTIONS: Final = frozenset(
    {b"connection", b"content-length", b"keep-alive", b"proxy-connection", b"te", b"trailer", b"transfer-encoding",
     b"upgrade"}
)  # fmt: skip
"""Headers that say how bytes are sent, which is the server's to decide."""
_WITHOUT_BODY: Final = frozenset({204, 205, 304})


def response_of_hook(
    status: int, headers: Iterable[tuple[bytes, bytes]], content: bytes
) -> tuple[int, list[tuple[bytes, bytes]], bytes]:
    """Return a hook's own response as it may be sent: without headers about the connection, without a body where its
    status has none. Raises ``HookFailed`` if the status or a header cannot be sent.
    """
    if not 200 <= status <= 599:
        raise HookFailed(f"the hook's answer has the status {status}", hint="use one from 200 to 599")
    kept = []
    for name, value in headers:
        if not _NAME(name) or not _VALUE(value):
            shown = ascii(name.decode("latin-1"))[:60]
            raise HookFailed(
                f"the hook's answer has a header that cannot be sent: {shown}",
                hint="names are letters, digits and dashes; values have no line breaks and no control characters",
            )
        if name.lower() not in _THE_CONNECTIONS:
            kept.append((name, value))
    return status, kept, b"" if status in _WITHOUT_BODY else content


def header_value(text: str) -> bytes:
    """Return a name that somebody chose (a model's, say) as a header's value; what cannot be sent is escaped."""
    return text.encode("unicode_escape")

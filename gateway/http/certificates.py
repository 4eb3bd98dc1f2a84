"""TLS: the names in a client's certificate, and the server's own certificate, read again when its files change.

Every worker makes its own ``tls_context``. A cluster renews certificates by replacing files. New connections use the
new certificate; open connections stay.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
from pathlib import Path
from typing import Final

from gateway.callers.access import Names

_log = logging.getLogger("triton_gateway.tls")

_NAMED: Final = ("DNS", "URI", "email", "IP Address")


def names_of_peer(transport: asyncio.BaseTransport) -> Names:
    """Return the names in the client's verified certificate; empty if it has shown none."""
    connection = transport.get_extra_info("ssl_object")
    found = connection.getpeercert() if connection is not None else None
    if not found:
        return ()
    common = [value for part in found.get("subject", ()) for name, value in part if name == "commonName"]
    others = [value for kind, value in found.get("subjectAltName", ()) if kind in _NAMED]
    return tuple(dict.fromkeys([*common, *others]))


def tls_context(certificate: str, key: str = "", authority: str = "") -> ssl.SSLContext:
    """Return a server's context of PEM files, renewed when they change. ``authority``: clients need its certificate.

    Raises ``OSError`` or ``ssl.SSLError``.
    """

    def make() -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        # Pass a password for the key: without one, OpenSSL asks for it at the terminal and waits.
        context.load_cert_chain(certificate, key or None, lambda: "none")
        if authority:
            context.verify_mode = ssl.CERT_REQUIRED
            context.load_verify_locations(authority)
        return context

    def changed() -> list[float]:
        return [Path(name).stat().st_mtime for name in (certificate, key, authority) if name]

    seen = changed()
    newest = listening = make()

    def renew(connection: ssl.SSLObject, _name: str | None, _context: ssl.SSLContext) -> None:
        """Use the newest context for a handshake that begins."""
        nonlocal newest, seen
        try:
            now = changed()
            if now != seen:
                newest, seen = make(), now
                _log.info("new certificates from %s", certificate)
        except (OSError, ssl.SSLError) as error:
            # Certificate and key are two files: for a moment after one is replaced, they do not match.
            _log.warning("the new certificates cannot be used, the old ones stay in use: %s", error)
        connection.context = newest

    listening.sni_callback = renew
    return listening

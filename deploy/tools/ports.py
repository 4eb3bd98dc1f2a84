"""Checks TCP ports before servers are started: is a port free, which one to choose.

Called by commands that start servers, so that a taken port gives one clear line instead of a child's traceback. A port
that is free now can be taken a moment later; then the server's own error is reported.
"""

from __future__ import annotations

import errno
import secrets
import socket

from deploy.tools.errors import DeployError


def is_free(host: str, port: int) -> bool:
    """Return True if a server could listen there now. Raises ``DeployError`` for an address of another machine."""
    try:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
        with socket.socket(family, socket.SOCK_STREAM) as trial:
            trial.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            trial.bind(address)
            trial.listen(1)
    except PermissionError as error:
        raise DeployError(f"port {port} needs root on this machine", hint="choose a port from 1024 on") from error
    except OSError as error:
        if not isinstance(error, socket.gaierror) and error.errno != errno.EADDRNOTAVAIL:
            return False
        hint = "use --host 127.0.0.1 or 0.0.0.0"
        raise DeployError(f"{host} is not an address of this machine", hint=hint) from error
    return True


def require_free(host: str, port: int, *, what: str, option: str) -> None:
    """Raise ``DeployError`` if the port is in use; it names ``option``. Port 0 is always free."""
    if port != 0 and not is_free(host, port):
        raise DeployError(
            f"port {port} for the {what} is taken",
            hint=f"stop that program (`ss -ltnp` shows it), or choose another port with {option} (0: a free one)",
        )


def choose(host: str, port: int, *, remembered: int, avoid: set[int]) -> int:
    """Return ``port``, or for 0 a free one, preferably ``remembered``. The result is added to ``avoid``.

    No connection is given that port before the server is there: kernels take others for them, from 32768 on.
    """
    if port == 0 and remembered and remembered not in avoid and is_free(host, remembered):
        port = remembered
    while port == 0:
        found = 12_000 + secrets.randbelow(20_000)
        port = found if found not in avoid and is_free(host, found) else 0
    avoid.add(port)
    return port

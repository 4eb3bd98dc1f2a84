"""Exceptions from the proxy that the environment names: a proxy cannot reach what runs on this machine."""

from __future__ import annotations

from collections.abc import MutableMapping
from typing import Final

_LOOPBACK: Final = ("127.0.0.1", "localhost")
NAMES: Final = ("no_proxy", "NO_PROXY")
"""The variables that name the exceptions. A file for a shell to source has them too."""


def except_loopback(environ: MutableMapping[str, str]) -> None:
    """Except this machine from the proxy: a proxy cannot reach what runs here.

    Programs read one of two names, and the first one that is set. So if only one is set, the other gets its hosts too.
    """
    given = {name: environ[name] for name in NAMES if environ.get(name)}
    for name in NAMES:
        hosts = [host for host in given.get(name, next(iter(given.values()), "")).split(",") if host]
        if hosts != ["*"]:  # every host is excepted already
            hosts += [host for host in _LOOPBACK if host not in hosts]
        environ[name] = ",".join(hosts)

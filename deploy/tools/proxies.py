"""Exceptions from the proxy that the environment names: a proxy cannot reach what runs on this machine.

``except_loopback`` adds them to the environment of our own programs, ``SHELL`` to a shell that sources a file of ours.
"""

from __future__ import annotations

from collections.abc import MutableMapping
from typing import Final

_LOOPBACK: Final = ("127.0.0.1", "localhost")
_NAMES: Final = ("no_proxy", "NO_PROXY")


def except_loopback(environ: MutableMapping[str, str]) -> None:
    """Except this machine from the proxy: a proxy cannot reach what runs here.

    Programs read one of two names, and the first one that is set. So if only one is set, the other gets its hosts too.
    """
    given = {name: environ[name] for name in _NAMES if environ.get(name)}
    for name in _NAMES:
        hosts = [host for host in given.get(name, next(iter(given.values()), "")).split(",") if host]
        if hosts != ["*"]:  # every host is excepted already
            hosts += [host for host in _LOOPBACK if host not in hosts]
        environ[name] = ",".join(hosts)


def _line(name: str, other: str) -> str:
    # `sh` computes it, so that the line means the same in bash, zsh, dash and fish, with and without `set -u`.
    hosts = f'hosts="${{{name}:-${{{other}:-}}}}"'
    known = "(\\*) ;; (127.0.0.1,localhost) ;; (*,127.0.0.1,localhost) ;;"
    return (
        f'export {name}="$(sh -c \'{hosts}; case "$hosts" in {known} '
        '(*) hosts="${hosts:+$hosts,}127.0.0.1,localhost";; esac; '
        'echo "$hosts"\')"\n'
    )


SHELL: Final = _line(*_NAMES) + _line(*reversed(_NAMES))
"""Lines for a shell that do the same. They keep the hosts that this shell excepts, not those of another shell."""

"""Pools of Tritons: their names and addresses, and which pools an endpoint runs on. Pure.

Gateways route and model syncs load by these functions, so both agree without communicating. Addresses are arguments,
never known here. Public: ``deploy`` may import it.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from typing import Final

DEFAULT: Final = "default"
"""The pool of endpoints that name none."""
ANY: Final = "*"
"""In place of a name: every pool (model sync), or every pool without an address of its own (gateway)."""
TAG: Final = "pool:"
"""Prefix of a model's tag that names a pool, for endpoints whose ``--aux-config`` names none."""

_NAME: Final = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")


def names(text: str) -> tuple[str, ...]:
    """Parse ``a10,h100`` into distinct names. Raises ``ValueError`` for no name and for an invalid one."""
    found = tuple(dict.fromkeys(part.strip() for part in text.split(",") if part.strip()))
    for name in found or (text.strip(),):
        if not _NAME.fullmatch(name):
            raise ValueError(
                f"{name!r} is not the name of a pool: use small letters, digits and dashes, at most 63 characters"
            )
    return found


def followed(text: str) -> frozenset[str]:
    """Parse the pools of a model sync: names, ``*`` for all, empty for ``default``. Raises ``ValueError``."""
    if text.strip() == ANY:
        return frozenset({ANY})
    return frozenset(names(text) if text.strip() else (DEFAULT,))


def wanted(option: str, tags: Collection[str]) -> tuple[str, ...]:
    """Return the pools of an endpoint: from its option, or else its model's tags, or else ``default``."""
    if option:
        return names(option)
    tagged = sorted(tag.removeprefix(TAG).strip() for tag in tags if tag.startswith(TAG))
    return tuple(dict.fromkeys(tagged)) or (DEFAULT,)


def addresses(text: str) -> dict[str, str]:
    """Parse ``a10=dns:///triton-a10:8001 h100=10.0.0.1:8001,10.0.0.2:8001``, separated by spaces, ``;`` or new lines.

    ``*`` instead of a name sets the address of all pools that are not named. Raises ``ValueError``.
    """
    found: dict[str, str] = {}
    for part in re.split(r"[\s;]+", text.strip(" \t\n;")) if text.strip(" \t\n;") else ():
        name, is_pair, address = part.partition("=")
        if not is_pair or not address:
            raise ValueError(f"{part!r} is not POOL=ADDRESS, for instance a10=dns:///triton-a10:8001")
        if name != ANY:
            names(name)
        if name in found:
            raise ValueError(f"pool {name} has two addresses; write them as one list: {name}=A:8001,B:8001")
        found[name] = address
    return found


def address_of(known: Mapping[str, str], pools: Sequence[str]) -> tuple[str, tuple[str, ...]]:
    """Return the addresses of ``pools``, joined by ``;``, and the pools without an address."""
    found = {pool: known.get(pool) or known.get(ANY, "") for pool in pools}
    return ";".join(dict.fromkeys(address for address in found.values() if address)), tuple(
        pool for pool, address in found.items() if not address
    )

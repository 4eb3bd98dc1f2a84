"""Which Tritons an endpoint runs on: names of pools, their addresses, and who of a pool holds which model. Pure.

Public: ``deploy`` may import it. A gateway routes by what is said here, and model sync loads by it, so that both agree
without asking each other. It must never know an address or a replica by itself: they are given.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Collection, Mapping, Sequence
from typing import Final

DEFAULT: Final = "default"
"""The pool of what names none."""
ANY: Final = "*"
"""Instead of a name: every pool (model sync), every pool without an address of its own (gateway)."""
TAG: Final = "pool:"
"""Start of a model's tag that names a pool, for endpoints whose ``--aux-config`` says nothing about it."""

MOST_COPIES: Final = 1000

_NAME: Final = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")


def names(text: str) -> tuple[str, ...]:
    """Read ``a10,h100``, each name once. Raises ``ValueError`` for none, and for one that is no name of a pool."""
    found = tuple(dict.fromkeys(part.strip() for part in text.split(",") if part.strip()))
    for name in found or (text.strip(),):
        if not _NAME.fullmatch(name):
            raise ValueError(f"{name!r} is not the name of a pool: small letters, digits and dashes, 63 at most")
    return found


def followed(text: str) -> frozenset[str]:
    """Read which pools a model sync belongs to: names, ``*`` for all, nothing for ``default``. Raises ``ValueError``"""
    if text.strip() == ANY:
        return frozenset({ANY})
    return frozenset(names(text) if text.strip() else (DEFAULT,))


def wanted(option: str, tags: Collection[str]) -> tuple[str, ...]:
    """Return the pools an endpoint runs on: what its option says, else its model's tags, else ``default``."""
    if option:
        return names(option)
    tagged = sorted(tag.removeprefix(TAG).strip() for tag in tags if tag.startswith(TAG))
    return tuple(dict.fromkeys(tagged)) or (DEFAULT,)


def addresses(text: str) -> dict[str, str]:
    """Read ``a10=dns:///triton-a10:8001 h100=10.0.0.1:8001,10.0.0.2:8001``: spaces, semicolons or new lines between.

    ``*`` instead of a name is the address of every pool that is not named. Raises ``ValueError``.
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
    """Return one address for all of ``pools`` (``;`` between those of several), and the pools that have none."""
    found = {pool: known.get(pool) or known.get(ANY, "") for pool in pools}
    return ";".join(dict.fromkeys(address for address in found.values() if address)), tuple(
        pool for pool, address in found.items() if not address
    )


def holders(model: str, members: Collection[str], copies: int) -> tuple[str, ...]:
    """Return the ``copies`` of ``members`` that hold ``model``, the first first; all of them if there are no more.

    Everybody who sees the same members comes to the same answer without asking (rendezvous hashing), each member gets
    its share, and one that comes or goes changes only what it holds itself.
    """

    def weight(member: str) -> bytes:
        return hashlib.sha256(f"{member}\n{model}".encode()).digest()

    return tuple(sorted(set(members), key=weight, reverse=True)[:copies])


def copies_of(option: str) -> int:
    """Read ``gateway.replicas``: on how many Tritons of its pool a model is; 0: on all. Raises ``ValueError``."""
    if not option:
        return 0
    if not option.isdecimal() or not 0 < int(option) <= MOST_COPIES:
        raise ValueError(f"{option!r} is no number of Tritons, 1 to {MOST_COPIES}")
    return int(option)


def quorum(copies: int) -> int:
    """Return how many of so many Tritons must have a model before it is called: half of them."""
    return (copies + 1) // 2

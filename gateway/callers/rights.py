"""What a caller may do: operations, and the endpoints they may be done to. Pure.

A pattern of endpoints is matched part by part, with ``*``, ``?`` and ``[a-c]`` as in file names. ``sentiment`` means
the endpoint and all its versions, ``sentiment/2`` one version, ``team-*/public`` the endpoints ``public`` of all teams,
and ``*`` everything.

Public: ``deploy`` may import it.
"""

from __future__ import annotations

from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import lru_cache
from math import inf
from typing import Annotated, Final

from pydantic import AfterValidator

from gateway.trace import CLASSES as CLASSES

INFER: Final = "infer"
METADATA: Final = "metadata"
METRICS: Final = "metrics"
STATUS: Final = "status"
FEEDBACK: Final = "feedback"
OPERATIONS: Final = {
    INFER: "ask endpoints",
    METADATA: "list the endpoints there are rights for, and what they take and give",
    METRICS: "read /metrics, which tells of every endpoint",
    STATUS: "read the page, /v1/status and /docs, which tell of every endpoint, and the lineage of its own",
    FEEDBACK: "send the true labels of answers (/v1/feedback)",
}
"""The operations that can be granted, and their meanings."""

ANYTHING: Final = ("*",)
_MAX_PATH: Final = 1000
"""Longest path that is matched: no endpoint's path is longer, and callers choose paths."""


@lru_cache(4096)  # callers use the same few paths again
def matches(pattern: str, path: str) -> bool:
    """Return whether ``pattern`` matches the endpoint path ``path``; see the module."""
    wanted, given = pattern.strip("/").split("/"), path.split("/")
    return len(given) >= len(wanted) and all(fnmatchcase(part, glob) for part, glob in zip(given, wanted, strict=False))


@dataclass(frozen=True, slots=True, eq=False)
class Caller:
    """A caller: its tenant, its rights, and when it expires (Unix seconds).

    ``name`` tells the callers of a tenant apart: a key's id or a token's subject. It is not secret.
    """

    name: str
    tenant: str
    endpoints: tuple[str, ...] = ANYTHING
    operations: frozenset[str] = frozenset({INFER, METADATA})
    priority: str = "default"
    """Its priority class."""
    expires: float = inf
    also: tuple[str, ...] = ()
    """Other names it can be revoked by: the id of its token."""

    @property
    def is_restricted(self) -> bool:
        """Whether some endpoints are hidden from it."""
        return "*" not in self.endpoints

    def reaches(self, path: str) -> bool:
        """Return whether its rights cover the endpoint path ``path``."""
        return len(path) <= _MAX_PATH and any(matches(pattern, path) for pattern in self.endpoints)


def _operation(name: str) -> str:
    if name not in OPERATIONS:
        raise ValueError(f"{name!r} is not an operation: use {', '.join(OPERATIONS)}")
    return name


def _pattern(text: str) -> str:
    if not text.strip("/") or len(text) > _MAX_PATH:
        raise ValueError(f"{text[:50]!r} is not a pattern of endpoints")
    return text


def _priority(name: str) -> str:
    if name not in CLASSES:
        raise ValueError(f"{name!r} is not a priority class: use {', '.join(CLASSES)}")
    return name


Operations = tuple[Annotated[str, AfterValidator(_operation)], ...]
Patterns = tuple[Annotated[str, AfterValidator(_pattern)], ...]
PriorityClass = Annotated[str, AfterValidator(_priority)]
"""Rights that can be granted, as pydantic checks them; a refusal lists the valid ones."""

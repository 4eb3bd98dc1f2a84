"""The class of priority of a request, for HTTP and for gRPC: what its caller asks for, within what its key allows."""

from __future__ import annotations

from typing import Final

from gateway.callers.rights import Caller
from gateway.errors import RequestError
from gateway.trace import CLASSES, DEFAULT, EVERYBODY, Lane

HEADER: Final = b"x-priority"


def lane_of(asked: bytes, caller: Caller | None) -> Lane:
    """Return among whom a request waits whose header is ``asked`` (empty for none).

    A caller's own class is the most important it may ask for; more than that gets its own. Raises ``RequestError`` for
    a class that there is not.
    """
    rank = DEFAULT if caller is None else CLASSES.index(caller.priority)
    if asked:
        name = asked.decode("latin-1").strip().lower()
        if name not in CLASSES:
            raise RequestError(f"x-priority is no class of priority: there are {', '.join(CLASSES)}")
        wanted = CLASSES.index(name)
        rank = wanted if caller is None else max(rank, wanted)
    if caller is None:
        return EVERYBODY if rank == DEFAULT else Lane(rank, "")
    return Lane(rank, caller.tenant)

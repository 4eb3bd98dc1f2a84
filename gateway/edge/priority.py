"""The priority class of a request, over HTTP and gRPC: what it asks for, within what the caller's key allows."""

from __future__ import annotations

from typing import Final

from gateway.callers.rights import Caller
from gateway.errors import RequestError
from gateway.trace import CLASSES, DEFAULT, DEFAULT_FLOW, Flow

HEADER: Final = b"x-priority"


def flow_of(asked: bytes, caller: Caller | None) -> Flow:
    """Return the class and tenant of a request; ``asked``: its header ``x-priority``, empty for none.

    A caller that asks for more than its own class gets its own class. Raises ``RequestError`` for an unknown class.
    """
    rank = DEFAULT if caller is None else CLASSES.index(caller.priority)
    if asked:
        name = asked.decode("latin-1").strip().lower()
        if name not in CLASSES:
            raise RequestError(f"x-priority must be one of {', '.join(CLASSES)}")
        wanted = CLASSES.index(name)
        rank = wanted if caller is None else max(rank, wanted)
    if caller is None:
        return DEFAULT_FLOW if rank == DEFAULT else Flow(rank, "")
    return Flow(rank, caller.tenant)

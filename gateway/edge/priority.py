"""The priority class of a request, over HTTP and gRPC: what it asks for, within what the caller's key allows."""

from __future__ import annotations

import re
from typing import Final

from gateway.callers.access import Access
from gateway.callers.rights import Caller
from gateway.errors import RequestError
from gateway.trace import CLASSES, CRITICAL, DEFAULT, DEFAULT_FLOW, Flow

HEADER: Final = b"x-priority"

_ASKED: Final = re.compile(rb"(?i)\r\n%b:[ \t]*critical[ \t]*\r\n" % HEADER).search
_SHOWN: Final = re.compile(rb"(?i)\r\nauthorization: ?([^\r\n]+)\r\n").search


def seems_critical(head: bytes, access: Access | None) -> bool:
    """Return whether an unparsed request that begins with ``head`` seems to be of class critical.

    It is if it asks for the class, or if its key was used recently by a caller of that class.
    """
    found = None if access is None else _SHOWN(head)
    caller = None if access is None or found is None else access.recent({b"authorization": found[1]})
    return _ASKED(head) is not None if caller is None else caller.priority == CLASSES[CRITICAL]


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

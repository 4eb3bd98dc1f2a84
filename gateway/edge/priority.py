"""The class of priority of a request, for HTTP and for gRPC: what its caller asks for, within what its key allows."""

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
    """Return whether a request that begins with ``head``, not read yet, seems to be of the most important class: by
    what it asks for, or by the class of who has shown the same lately.
    """
    found = None if access is None else _SHOWN(head)
    caller = None if access is None or found is None else access.recent({b"authorization": found[1]})
    return _ASKED(head) is not None if caller is None else caller.priority == CLASSES[CRITICAL]


def flow_of(asked: bytes, caller: Caller | None) -> Flow:
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
        return DEFAULT_FLOW if rank == DEFAULT else Flow(rank, "")
    return Flow(rank, caller.tenant)

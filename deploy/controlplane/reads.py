"""Remembers what each client process has read of a Task, to tell its own changes from other people's.

`api/tasks` calls `saw` on every read, `wrote` on every write, and `bases` before a merge. The memory is bounded and not
persistent. After a restart, or for a forgotten client, the base is unknown and a write is taken unmerged, as a stock
server does.
"""

import threading
import time
import zlib
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from deploy.controlplane.store import dumps, loads

MAX_TRACKED = 256
MAX_READS = 24
# Seconds. A long-lived process is not assumed to write from an older copy than this.
HORIZON_S = 600.0

# the parts of a Task that clients write back whole
TRACKED_FIELDS = ("configuration", "hyperparams", "runtime", "execution", "models")


@dataclass(slots=True)
class _Read:
    rev: int
    at: float
    # compressed JSON of the tracked fields: a few kB, where live objects would take some hundred kB
    packed: bytes
    times: int = 1

    @property
    def doc(self) -> Mapping[str, Any]:
        unpacked: Mapping[str, Any] = loads(zlib.decompress(self.packed))
        return unpacked


@dataclass(slots=True)
class _History:
    reads: list[_Read] = field(default_factory=list)
    written: dict[str, tuple[float, Any]] = field(default_factory=dict)


class ReadLog:
    """Remembers reads and writes per (session, task). Thread-safe."""

    def __init__(self, *, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._monotonic = monotonic
        self._lock = threading.Lock()
        self._histories: OrderedDict[tuple[str, str], _History] = OrderedDict()

    def saw(self, session: str | None, task_id: str, rev: int, doc: Mapping[str, Any]) -> None:
        """Record that `session` was sent revision `rev` of the Task."""
        if session is None:
            return
        with self._lock:
            reads = self._history(session, task_id).reads
            if reads and reads[-1].rev == rev:
                reads[-1].at = self._monotonic()
                reads[-1].times += 1
                return
            tracked = {name: doc.get(name) for name in TRACKED_FIELDS}
            reads.append(_Read(rev, self._monotonic(), zlib.compress(dumps(tracked).encode(), level=1)))
            if len(reads) > MAX_READS:
                # both the first reads (a CLI's in-memory copy) and the last ones (the SDK reads again before it writes)
                # matter
                del reads[MAX_READS // 2]

    def wrote(self, session: str | None, task_id: str, name: str, value: Any) -> None:
        """Record that `session` sent `value` for `name`: its in-memory value now, whatever was merged into the stored
        one.
        """
        if session is None:
            return
        with self._lock:
            self._history(session, task_id).written[name] = (self._monotonic(), value)

    def last(self, session: str | None, task_id: str) -> Mapping[str, Any] | None:
        """The state that `session` read last; None if unknown."""
        with self._lock:
            history = self._histories.get((session, task_id)) if session else None
            return history.reads[-1].doc if history and history.reads else None

    def bases(
        self,
        session: str | None,
        task_id: str,
        name: str,
        value_of: Callable[[Mapping[str, Any]], Any],
        *,
        keeps_copy: bool,
    ) -> list[Any]:
        """The values of `name` from which `session` may have started its write, oldest first; empty when unknown.

        `keeps_copy`: the client loads the Task once and later writes from memory (the clearml-serving CLI). Others
        change what they have just read: their last two reads count, as the SDK itself adds one right before the
        write.
        """
        with self._lock:
            history = self._histories.get((session, task_id)) if session else None
            if history is None:
                return []
            written = history.written.get(name)
            since = written[0] if written else float("-inf")
            reads = [read for read in history.reads if read.at > since]
            recent = [read for read in reads[:-1] if read.at >= self._monotonic() - HORIZON_S] + reads[-1:]
            if not keeps_copy:
                recent = recent[-1:] if recent and recent[-1].times > 1 else recent[-2:]
            return ([written[1]] if written else []) + [value_of(read.doc) for read in recent]

    def forget(self, task_id: str) -> None:
        """Forget a deleted Task."""
        with self._lock:
            for key in [key for key in self._histories if key[1] == task_id]:
                del self._histories[key]

    def _history(self, session: str, task_id: str) -> _History:
        key = (session, task_id)
        history = self._histories.setdefault(key, _History())
        self._histories.move_to_end(key)
        while len(self._histories) > MAX_TRACKED:
            self._histories.popitem(last=False)
        return history

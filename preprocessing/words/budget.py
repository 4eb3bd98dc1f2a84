"""One limit for the words in all caches of a process: idle caches give way to busy ones.

Each cache also has a limit of its own. With hundreds of tokenizers, the sum of those would exceed the process's memory,
and an equal share for each would be too small for the few busy ones.
"""

from __future__ import annotations

from threading import Lock
from typing import Final, Protocol
from weakref import WeakSet

_LOOK: Final = 100
"""All caches are examined after this fraction of the limit (1/100) was added."""
_ROOM: Final = 0.9
"""Share of the limit that remains after a reduction, so that reductions are rare."""


class Cache(Protocol):
    """The part of a cache that the budget needs."""

    @property
    def words(self) -> int:
        """Number of words in the cache."""
        ...

    def used(self) -> int:
        """Return the number of texts since the last call."""
        ...

    def shrink(self, *, wholly: bool) -> int:
        """Drop the words that were not used recently, or all; return how many were dropped."""
        ...


class WordBudget:
    """Limits the words of all caches together; ``max_words`` 0 means no limit. Thread-safe."""

    def __init__(self, max_words: int = 0) -> None:
        self.max_words = max_words
        self._caches: WeakSet[Cache] = WeakSet()
        self._lock = Lock()
        self._new = 0

    def add(self, cache: Cache) -> None:
        """Include this cache while it exists."""
        with self._lock:
            self._caches.add(cache)

    def learned(self, count: int) -> None:
        """Record that a cache grew by ``count`` words; may shrink caches. Call it without holding a cache's lock."""
        self._new += count
        if not self.max_words or self._new * _LOOK < self.max_words or not self._lock.acquire(blocking=False):
            return
        try:
            self._new = 0
            self._make_room()
        finally:
            self._lock.release()

    def _make_room(self) -> None:
        caches = list(self._caches)
        left = sum(cache.words for cache in caches)
        used = {id(cache): cache.used() for cache in caches}
        if left <= self.max_words:
            return
        caches.sort(key=lambda cache: used[id(cache)])
        for _ in range(2):  # first drop words that were not used recently, then all others
            for cache in caches:
                if left <= _ROOM * self.max_words:
                    return
                left -= cache.shrink(wholly=not used[id(cache)])


OF_PROCESS: Final = WordBudget(2_000_000)
"""The budget of all caches of this process, unless a cache is given another."""

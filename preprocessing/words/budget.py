"""One bound for the words that all caches of a process remember together: who is not asked gives way to who is.

Each cache has a bound of its own too. With hundreds of tokenizers the sum of those would be far more than a process
has; an equal share for each would be too little for the few that are busy.
"""

from __future__ import annotations

from threading import Lock
from typing import Final, Protocol
from weakref import WeakSet

_LOOK: Final = 100
"""A look at all caches is due when this fraction of the bound is new."""
_ROOM: Final = 0.9
"""What is left afterwards of the bound, so that looks stay rare."""


class Cache(Protocol):
    """What a budget needs of a cache."""

    @property
    def words(self) -> int:
        """How many it remembers."""
        ...

    def used(self) -> int:
        """Return how many texts it was asked for since this was called last."""
        ...

    def shrink(self, *, wholly: bool) -> int:
        """Forget the words that were not asked for lately, or all; returns how many it forgot."""
        ...


class WordBudget:
    """Bounds what caches remember together; ``max_words`` 0 is no bound. Safe from any thread."""

    def __init__(self, max_words: int = 0) -> None:
        self.max_words = max_words
        self._caches: WeakSet[Cache] = WeakSet()
        self._lock = Lock()
        self._new = 0

    def add(self, cache: Cache) -> None:
        """Count this one from now on, as long as it lives."""
        with self._lock:
            self._caches.add(cache)

    def learned(self, count: int) -> None:
        """Note that some cache remembers ``count`` more; now and then this makes others forget. Call it unlocked."""
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
        for _ in range(2):  # what was not asked for lately is forgotten first, then what was
            for cache in caches:
                if left <= _ROOM * self.max_words:
                    return
                left -= cache.shrink(wholly=not used[id(cache)])


OF_PROCESS: Final = WordBudget()
"""The one that every cache of this process counts in, unless it is given another."""

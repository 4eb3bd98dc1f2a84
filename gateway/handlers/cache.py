"""A cache of answers in front of the handler of a text task, keyed by the body."""

from __future__ import annotations

import sys
from collections import OrderedDict
from collections.abc import Callable
from time import perf_counter_ns
from typing import Any, Final

import numpy as np
import orjson

from gateway.handlers.text import TextHandler
from gateway.trace import Trace

MAX_BYTES: Final = 64 << 20
"""Largest memory of the cache of one endpoint in one worker: answers and their bodies."""
_FIXED_BYTES: Final = 300
"""The bytes of an entry beyond its key and its answer."""


class CachedHandler:
    """Keeps the answers to the most recently used bodies: at most ``max_entries``, in at most ``MAX_BYTES``.

    It belongs to one endpoint version, so a new version starts empty. ``on_cache(is_hit)`` is called for every lookup.
    """

    takes_bytes = False
    needs_task = False

    def __init__(self, handler: TextHandler, max_entries: int, on_cache: Callable[[bool], None]) -> None:
        self.text = handler
        self.task = handler.task
        self._max_entries = max_entries
        self._on_cache = on_cache
        self._answers: OrderedDict[bytes, tuple[object, int, int]] = OrderedDict()
        self.held_bytes = 0

    async def answer(self, question: Any, ask: Trace) -> object:
        """See ``Handler``. The time of a cached answer counts as the stage ``prepare``."""
        if type(question) is not dict or ask.needs_outputs:  # token ids, tensors, or more than the answer
            return await self.text.answer(question, ask)
        started = perf_counter_ns()
        try:
            key = orjson.dumps(question)
        except TypeError:  # a hook's request may hold values that are not JSON
            return await self.text.answer(question, ask)
        found = self._answers.get(key)
        self._on_cache(found is not None)
        if found is not None:
            self._answers.move_to_end(key)
            answer, ask.rows, _ = found
            ask.prepare_ns = perf_counter_ns() - started
            return answer
        answer = await self.text.answer(question, ask)
        self._keep(key, ask.rows, answer)
        return answer

    def _keep(self, key: bytes, rows: int, answer: object) -> None:
        size = _FIXED_BYTES + len(key) + size_of(answer)
        if size > MAX_BYTES:
            return
        known = self._answers.pop(key, None)  # requested twice before it was answered
        if known is not None:
            self.held_bytes -= known[2]
        self._answers[key] = (answer, rows, size)
        self.held_bytes += size
        while len(self._answers) > self._max_entries or self.held_bytes > MAX_BYTES:
            _, (_, _, freed) = self._answers.popitem(last=False)
            self.held_bytes -= freed

    async def close(self) -> None:
        """See ``Handler.close``."""
        await self.text.close()


def size_of(answer: object) -> int:
    """Return the approximate bytes of memory of an answer of dicts, lists, texts, numbers and arrays."""
    if isinstance(answer, np.ndarray):
        # A view keeps its whole base array in memory.
        return sys.getsizeof(answer) + (answer.nbytes if answer.base is None else getattr(answer.base, "nbytes", 0))
    if isinstance(answer, dict):
        return sys.getsizeof(answer) + sum(size_of(key) + size_of(value) for key, value in answer.items())
    if isinstance(answer, list | tuple):
        return sys.getsizeof(answer) + sum(size_of(value) for value in answer)
    return sys.getsizeof(answer)

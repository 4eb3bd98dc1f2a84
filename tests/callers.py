"""Callers that ask again and again from threads while something happens, and send nothing twice."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable
from typing import Self


class Callers:
    """They ask while the block is open: ``ask(number)`` says what was wrong with an answer, "" if nothing was."""

    def __init__(self, ask: Callable[[int], str], *, threads: int = 1, pause: float = 0.02) -> None:
        self._ask, self._pause = ask, pause
        self._numbers = itertools.count()
        self._ends = threading.Event()
        self._threads = [threading.Thread(target=self._run) for _ in range(threads)]
        self.asked = 0
        self.failures: list[str] = []

    def _run(self) -> None:
        while not self._ends.is_set():
            try:
                wrong = self._ask(next(self._numbers))
            except Exception as error:
                wrong = type(error).__name__
            self.asked += 1
            self.failures += [wrong] if wrong else []
            time.sleep(self._pause)

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ends.set()
        for thread in self._threads:
            thread.join()

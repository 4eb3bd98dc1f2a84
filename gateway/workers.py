"""Workers that share one listening socket: forked from a parent that has everything imported, replaced when they end.

A worker that is started anew costs a fork, not the seconds in which FastAPI, gRPC and the ClearML SDK are imported. The
parent imports and does nothing else: it runs no event loop, opens no connection and starts no thread, so that a fork is
safe at any moment. A worker that gives no sign of life for ``silence_timeout`` seconds is killed and replaced like a
dead one.
"""

from __future__ import annotations

import contextlib
import gc
import logging
import multiprocessing
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection, wait
from typing import Final, Protocol

_log = logging.getLogger("triton_gateway")
_FORK = multiprocessing.get_context("fork")

_BEAT_S: Final = 1.0
_SILENCE_TIMEOUT_S: Final = 15.0
_SOON_S: Final = 5.0
"""A worker that ends sooner than this after its start is replaced after a pause: a broken one would fork in a loop."""
_PAUSE_S: Final = 0.5
_LOOK_S: Final = 0.1
_START_S: Final = 60.0
_CANNOT_START: Final = 3
_STOPS: Final = (signal.SIGTERM, signal.SIGINT)


class Served(Protocol):
    """A server that can be run once; ``uvicorn.Server`` is one."""

    @property
    def started(self) -> bool:
        """Whether it serves."""
        ...

    def run(self) -> None:
        """Serve until the process is told to stop."""
        ...


class _Worker:
    """One worker, as its parent sees it."""

    def __init__(self, make: Callable[[], Served]) -> None:
        """Raise ``OSError`` if there is no room for another process."""
        self._hears, says = _FORK.Pipe(duplex=False)
        self.process = _FORK.Process(target=_work, args=(make, says))
        # A signal between the fork and the worker's own handlers would be taken for the parent's, and lost.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, _STOPS)
        try:
            self.process.start()
        except OSError:
            self._hears.close()
            raise
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
            says.close()
        self.began = self._looked = time.monotonic()
        self._silence = 0.0
        self.has_served = False

    def silent(self, now: float) -> float:
        """Return for how many seconds it has given no sign of life while its parent listened.

        A parent that was stopped itself, with its container or its machine, has missed nothing.
        """
        self._silence += min(now - self._looked, 2 * _BEAT_S)
        self._looked = now
        with contextlib.suppress(OSError, EOFError):
            while self._hears.poll():
                self.has_served |= self._hears.recv_bytes() == b"serves"
                self._silence = 0.0
        return self._silence

    def close(self) -> None:
        """Forget a worker that has ended."""
        self._hears.close()
        self.process.close()


class Workers:
    """``count`` processes that each run what ``make`` returns. Use from the main thread; ``run`` returns once."""

    def __init__(
        self, make: Callable[[], Served], count: int, *, drain: float, silence_timeout: float = _SILENCE_TIMEOUT_S
    ) -> None:
        """Bound a worker's stop by ``drain`` seconds and a few more, and its silence by ``silence_timeout`` seconds."""
        self._make = make
        self._count = count
        self._drain = drain
        self._silence_timeout = silence_timeout
        self._workers: list[_Worker] = []
        self._has_served = False
        self._wakes, self._wake = os.pipe()
        self._must_stop = False
        self._renews = False

    def run(self) -> int:
        """Keep the workers running until SIGTERM or SIGINT; returns the exit code. SIGHUP replaces one after the other.

        1: none could ever start, which no restart would change.
        """
        os.set_blocking(self._wake, False)
        for number in _STOPS:
            signal.signal(number, self._stop)
        signal.signal(signal.SIGHUP, self._renew)
        gc.collect()
        gc.freeze()  # what was imported is shared with the workers as long as nobody writes to it
        try:
            for _ in range(self._count):
                worker = self._new()
                if worker is None:
                    return 1
                self._workers.append(worker)
            while not self._must_stop:
                if not self._tend():
                    return 1
                if self._renews:
                    self._renews = False
                    self._replace_all()
                self._rest([worker.process.sentinel for worker in self._workers], _BEAT_S)
            return 0
        finally:
            self._end()

    def _tend(self) -> bool:
        """Replace who has ended or stands still; False when nobody can start at all."""
        self._take_away()
        now = time.monotonic()
        for place, worker in enumerate(self._workers):
            silent = worker.silent(now)
            self._has_served |= worker.has_served
            if worker.process.is_alive() and silent > self._silence_timeout:
                _log.error("worker %s gave no sign of life for %.0f s: it is replaced", worker.process.pid, silent)
                worker.process.kill()
                worker.process.join()
            if worker.process.is_alive():
                continue
            code = worker.process.exitcode
            if code == _CANNOT_START and not self._has_served:
                return False
            if now - worker.began < _SOON_S:
                self._rest([], _PAUSE_S)
            if self._must_stop:
                return True
            new = self._new()
            if new is None:  # tried again in the next round
                self._rest([], _PAUSE_S)
                continue
            _log.warning("worker %s ended (%s): it is replaced", worker.process.pid, code)
            worker.close()
            self._workers[place] = new
        return True

    def _take_away(self) -> None:
        """Take what killed workers have left out of the table of processes.

        The first process of a container becomes the parent of their hook processes when they are gone.
        """
        mine = {worker.process.pid for worker in self._workers}
        with contextlib.suppress(ChildProcessError):
            while (ended := os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)) is not None:
                if ended.si_pid in mine:  # its turn comes first; the others' in the next round
                    return
                os.waitpid(ended.si_pid, os.WNOHANG)

    def _new(self) -> _Worker | None:
        try:
            return _Worker(self._make)
        except OSError as error:
            _log.error("a worker cannot be started: %s", error.strerror or error)
            return None

    def _replace_all(self) -> None:
        """Bring a new worker into service before each of the old ones leaves."""
        for place, old in enumerate(self._workers):
            new = self._new()
            if new is None:
                return
            self._wait(new, _START_S, serves=True)
            if not new.has_served:
                if not self._must_stop:
                    _log.error("a new worker did not come into service within %.0f s: the others stay", _START_S)
                _kill(new)
                return
            self._workers[place] = new
            old.process.terminate()
            self._wait(old, self._drain + _SOON_S, serves=False)
            if old.process.is_alive() and self._must_stop:
                self._workers.append(old)  # everybody is told to stop now, and has the same time for it
                return
            _kill(old)

    def _wait(self, worker: _Worker, seconds: float, *, serves: bool) -> None:
        """Wait until the worker serves or has ended: for ``seconds`` at most, and until all are told to stop."""
        until = time.monotonic() + seconds
        while worker.process.is_alive() and not self._must_stop and time.monotonic() < until:
            if serves and worker.has_served:
                return
            self._rest([worker.process.sentinel], _LOOK_S)
            worker.silent(time.monotonic())

    def _rest(self, sentinels: list[int], seconds: float) -> None:
        """Wait for a signal, or for one of the sentinels."""
        if self._wakes in wait([self._wakes, *sentinels], timeout=seconds):
            os.read(self._wakes, 64)

    def _renew(self, _number: int, _frame: object) -> None:
        self._renews = True
        with contextlib.suppress(BlockingIOError):
            os.write(self._wake, b".")

    def _stop(self, _number: int, _frame: object) -> None:
        self._must_stop = True
        with contextlib.suppress(BlockingIOError):
            os.write(self._wake, b".")

    def _end(self) -> None:
        """Tell all workers to stop, and wait until each has."""
        for worker in self._workers:
            worker.process.terminate()
        until = time.monotonic() + self._drain + _SOON_S
        for worker in self._workers:
            worker.process.join(max(0.0, until - time.monotonic()))
            if worker.process.is_alive():
                worker.process.kill()
                worker.process.join()


def _kill(worker: _Worker) -> None:
    worker.process.kill()
    worker.process.join()
    worker.close()


def _work(make: Callable[[], Served], says: Connection) -> None:
    for number in _STOPS:
        signal.signal(number, signal.SIG_DFL)  # not the parent's handlers, until the server has its own
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _STOPS)
    server = make()
    threading.Thread(target=_beat, args=(server, says), daemon=True).start()
    server.run()
    sys.exit(0 if server.started else _CANNOT_START)


def _beat(server: Served, says: Connection) -> None:
    with contextlib.suppress(OSError):  # the parent is gone
        while True:
            says.send_bytes(b"serves" if server.started else b"starts")
            time.sleep(_BEAT_S)


def warm(modules: Sequence[str]) -> None:
    """Import what every worker will need; one that is not installed is left to whoever needs it."""
    import importlib

    for name in modules:
        with contextlib.suppress(ImportError):
            importlib.import_module(name)

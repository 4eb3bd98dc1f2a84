"""Worker processes that share one listening socket (prefork). The parent imports everything and replaces ended workers.

A new worker costs a fork, not the seconds that it takes to import FastAPI, gRPC and the ClearML SDK. The parent also
adds up the workers' numbers and shows them when it is asked (``metrics.workers``). It runs no event loop, opens no
connection and starts no thread, so it can fork safely at any time. A worker without a heartbeat for ``silence_timeout``
seconds is killed and replaced like a dead one.
"""

from __future__ import annotations

import contextlib
import gc
import logging
import multiprocessing
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable
from multiprocessing.connection import wait
from typing import Any, Final, NamedTuple

from gateway.http.problems import FAILURES
from gateway.http.server import Server
from gateway.metrics.views import Views
from gateway.metrics.workers import Totals

_log = logging.getLogger("triton_gateway")
_FORK = multiprocessing.get_context("fork")

_BEAT_S: Final = 1.0
_SILENCE_TIMEOUT_S: Final = 15.0
_EARLY_S: Final = 5.0
"""A worker that ends within 5 s is replaced after a pause. Otherwise a broken one would fork in a tight loop."""
_PAUSE_S: Final = 0.5
_CANNOT_START: Final = 3
_STARTS, _SERVES = "starts", "serves"
"""Heartbeats of a worker."""
_STOPS: Final = (signal.SIGTERM, signal.SIGINT)


Make = Callable[[], Server]
"""Makes the server of a worker, in the worker, where ``link`` is set."""


class Link(NamedTuple):
    """What a worker shares with its parent and the other workers."""

    parent: socket.socket
    """For heartbeats and numbers (``metrics.workers``)."""
    parent_pid: int
    joins: bool
    """Whether other workers served already when it was started: they take the requests meanwhile."""


link: Link | None = None
"""This process's, if it is a worker."""


class _Worker:
    """One worker, in the parent."""

    def __init__(self, make: Make, totals: Totals, *, joins: bool) -> None:
        """Raises ``OSError`` if no process can be started."""
        self._totals = totals
        self.socket, of_worker = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.process = _FORK.Process(target=_work, args=(make, Link(of_worker, os.getpid(), joins)))
        # Before the worker sets its own handlers, the parent's would handle its signals, and they would be lost.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, _STOPS)
        try:
            self.process.start()
        except OSError:
            self.socket.close()
            raise
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
            of_worker.close()
        totals.add(self.socket)
        self.began = self.heard = time.monotonic()
        self.has_served = False

    def hear(self) -> None:
        """Take what the worker has said."""
        if words := self._totals.hear(self.socket):
            self.has_served |= _SERVES in words
            self.heard = time.monotonic()

    def close(self) -> None:
        """Release a worker that has ended; its counts stay."""
        self._totals.end(self.socket)
        self.socket.close()
        self.process.close()


class Workers:
    """``count`` processes that each run the server that ``make`` returns. Used from the main thread, once."""

    def __init__(
        self,
        make: Make,
        count: int,
        *,
        drain: float,
        ends: Callable[[], None] = lambda: None,
        silence_timeout: float = _SILENCE_TIMEOUT_S,
    ) -> None:
        """``drain``: seconds for a worker to stop (plus 5). ``silence_timeout``: seconds without a heartbeat.

        ``ends`` is called when the workers have been told to stop. It closes what the parent holds open for them.
        """
        self._make = make
        self._ends = ends
        self._count = count
        self._drain = drain
        self._silence_timeout = silence_timeout
        self._workers: list[_Worker] = []
        self._totals = Totals(Views(FAILURES))
        self._has_served = False
        self._wakes, self._wake = os.pipe()
        self._must_stop = False

    def run(self) -> int:
        """Keep the workers running until SIGTERM or SIGINT, and return the exit code.

        The exit code is 1 if no worker could ever start.
        """
        os.set_blocking(self._wake, False)
        for number in _STOPS:
            signal.signal(number, self._stop)
        gc.collect()
        gc.freeze()  # imported objects stay shared with the workers until somebody writes to them
        try:
            for _ in range(self._count):
                worker = self._new()
                if worker is None:
                    return 1
                self._workers.append(worker)
            while not self._must_stop:
                if not self._tend():
                    return 1
                self._sleep([worker.process.sentinel for worker in self._workers], _BEAT_S)
            return 0
        finally:
            self._end()

    def _tend(self) -> bool:
        """Replace workers that have ended or hang; return False if no worker can start at all."""
        now = time.monotonic()
        for index, worker in enumerate(self._workers):
            worker.hear()
            silent = now - worker.heard
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
            if now - worker.began < _EARLY_S:
                self._sleep([], _PAUSE_S)
            if self._must_stop:
                return True
            new = self._new()
            if new is None:  # tried again in the next round
                self._sleep([], _PAUSE_S)
                continue
            _log.warning("worker %s ended (%s): it is replaced", worker.process.pid, code)
            worker.close()
            self._workers[index] = new
        return True

    def _new(self) -> _Worker | None:
        for worker in self._workers:
            worker.hear()
        joins = any(worker.has_served and worker.process.is_alive() for worker in self._workers)
        try:
            return _Worker(self._make, self._totals, joins=joins)
        except OSError as error:
            _log.error("a worker cannot be started: %s", error.strerror or error)
            return None

    def _sleep(self, sentinels: list[int], seconds: float) -> None:
        """Wait for a signal or one of the sentinels, for ``seconds`` at most, and listen to the workers meanwhile."""
        until = time.monotonic() + seconds
        while (left := until - time.monotonic()) > 0:
            said: dict[Any, _Worker] = {worker.socket: worker for worker in self._workers}
            ready = wait([self._wakes, *sentinels, *said], timeout=max(0.0, min(left, self._totals.answer())))
            for one in ready:
                if one in said:
                    said[one].hear()
            if self._wakes in ready:
                os.read(self._wakes, 64)
                return
            if any(sentinel in ready for sentinel in sentinels):
                return

    def _stop(self, _number: int, _frame: object) -> None:
        self._must_stop = True
        with contextlib.suppress(BlockingIOError):
            os.write(self._wake, b".")

    def _end(self) -> None:
        """Stop all workers, and wait until each has ended."""
        for worker in self._workers:
            worker.process.terminate()
        self._ends()
        until = time.monotonic() + self._drain + _EARLY_S
        while (left := until - time.monotonic()) > 0:
            running = [worker.process.sentinel for worker in self._workers if worker.process.is_alive()]
            if not running:
                return
            self._sleep(running, left)
        for worker in self._workers:
            if worker.process.is_alive():
                worker.process.kill()
                worker.process.join()


def _work(make: Make, of_worker: Link) -> None:
    global link  # `app.create_app` reads it
    link = of_worker
    for number in _STOPS:
        signal.signal(number, signal.SIG_DFL)  # until the server sets its own handlers
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _STOPS)
    server = make()
    threading.Thread(target=_beat, args=(server, of_worker.parent), daemon=True).start()
    server.run()
    sys.exit(0 if server.started else _CANNOT_START)


def _beat(server: Server, parent: socket.socket) -> None:
    with contextlib.suppress(ConnectionError):  # the parent is gone
        while True:
            has_started = server.started
            with contextlib.suppress(BlockingIOError):  # the parent is stopped
                parent.sendmsg([(_SERVES if has_started else _STARTS).encode()], (), socket.MSG_DONTWAIT)
            time.sleep(_BEAT_S if has_started else _BEAT_S / 10)

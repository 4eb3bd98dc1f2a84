"""Child processes of a run: started on their cores, waited for, stopped as a group. Nothing is left behind."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

LOOPBACK = "127.0.0.1"

# Between fork and exec: where it runs, and that it ends with us even when we are killed.
_CHILD = (
    "import ctypes,os,signal,sys\n"
    "ctypes.CDLL(None).prctl(1, signal.SIGKILL)\n"
    "os.sched_setaffinity(0, {int(c) for c in sys.argv[1].split(',')})\n"
    "os.execvp(sys.argv[2], sys.argv[2:])\n"
)


class ServerFailed(Exception):
    """A server did not start; the message ends with the last lines of its log."""


def free_port() -> int:
    """Return a port that nothing listens on now."""
    with socket.socket() as sock:
        sock.bind((LOOPBACK, 0))
        return int(sock.getsockname()[1])


def free_ports(count: int) -> list[int]:
    """Return so many ports, no two alike, that nothing listens on now."""
    with contextlib.ExitStack() as held:
        sockets = [held.enter_context(socket.socket()) for _ in range(count)]
        for sock in sockets:
            sock.bind((LOOPBACK, 0))
        return [int(sock.getsockname()[1]) for sock in sockets]


def on_cores(argv: Sequence[str], cores: Iterable[int]) -> list[str]:
    """Return a command that runs ``argv`` bound to ``cores`` and ends with its parent."""
    return [sys.executable, "-I", "-S", "-c", _CHILD, ",".join(map(str, sorted(cores))), *argv]


class Server:
    """One child process with a log of its own."""

    def __init__(self, name: str, argv: Sequence[str], *, env: Mapping[str, str], cores: Iterable[int], log: Path,
                 cwd: Path | None = None) -> None:  # fmt: skip
        self.name = name
        self._log = log
        log.parent.mkdir(parents=True, exist_ok=True)
        with log.open("wb") as out:
            self._process = subprocess.Popen(
                on_cores(argv, cores), stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.STDOUT,
                env={**env, "PYTHONUNBUFFERED": "1"}, cwd=cwd, start_new_session=True,
            )  # fmt: skip

    @property
    def pid(self) -> int:
        """The child's process id."""
        return self._process.pid

    def wait_for(self, url: str, body: bytes | None = None, *, timeout_s: float = 120.0) -> bytes:
        """Ask until the answer is 200 and return it. Raises ``ServerFailed``."""
        until = time.monotonic() + timeout_s
        reason = ""
        while time.monotonic() < until:
            if self._process.poll() is not None:
                raise ServerFailed(f"{self.name} ended with {self._process.returncode}: {self.last_lines()}")
            try:
                return ask(url, body)
            except OSError as error:
                reason = describe(error)
                time.sleep(0.3)
        raise ServerFailed(f"{self.name} did not answer within {timeout_s:.0f} s ({reason}): {self.last_lines()}")

    def last_lines(self, count: int = 4) -> str:
        """Return the end of the log in one line."""
        lines = [line.strip() for line in self._log.read_text(errors="replace").splitlines() if line.strip()]
        return " | ".join(lines[-count:])[-600:]

    def end(self, *, within_s: float = 60.0) -> int:
        """Send SIGTERM and wait for it to end by itself; returns its exit code. Raises ``ServerFailed``."""
        self._process.terminate()
        try:
            code = self._process.wait(within_s)
        except subprocess.TimeoutExpired:
            self.stop()
            raise ServerFailed(f"{self.name} did not end within {within_s:.0f} s: {self.last_lines()}") from None
        self.stop()
        return code

    def stop(self) -> None:
        """Ask it to end, wait, kill what is left of its group."""
        if self._process.poll() is None:
            self._process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(8)
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()


def ask(url: str, body: bytes | None = None, *, timeout: float = 20.0) -> bytes:
    """GET, or POST ``body`` as JSON, and return the content of a 200. Raises ``OSError``."""
    request = urllib.request.Request(url, data=body, headers={"content-type": "application/json"})
    with _opener.open(request, timeout=timeout) as reply:
        return bytes(reply.read())


def ask_json(url: str) -> dict[str, object]:
    """GET a JSON object."""
    found = json.loads(ask(url))
    return found if isinstance(found, dict) else {}


def describe(error: OSError) -> str:
    """Return what an HTTP error says, with the beginning of its body."""
    if isinstance(error, urllib.error.HTTPError):
        return f"{error.code} {error.read()[:300].decode(errors='replace')}"
    return str(error)


# loopback never goes through a proxy
_opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))

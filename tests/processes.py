"""Child processes: bound to cores, called, waited for, and stopped as a group. None is left behind."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Final, Self

from gateway.parent_death import ending_with_parent
from tests.waiting import LIMIT_S

LOOPBACK = "127.0.0.1"
ROOT = Path(__file__).parents[1]
"""The checkout; processes that need its packages are started here."""


class ServerFailed(Exception):
    """A server did not start; the message ends with the last lines of its log."""


_chance: Final = random.SystemRandom()
_given: Final[set[int]] = set()


def free_port() -> int:
    """Return a port that nothing listens on now."""
    return free_ports(1)[0]


def free_ports(count: int) -> list[int]:
    """Return ``count`` different ports that nothing listens on now, and that no connection or other server is given by
    the kernel before they are used: it chooses from 32768 on.
    """
    found: list[int] = []
    while len(found) < count:
        port = _chance.randrange(12_000, 32_000)
        with socket.socket() as sock, contextlib.suppress(OSError):
            sock.bind((LOOPBACK, port))
            found += [port] if port not in _given else []
            _given.add(port)
    return found


def on_cores(argv: Sequence[str], cores: Iterable[int]) -> list[str]:
    """Return a command that runs ``argv`` bound to ``cores`` and ends with its parent."""
    return ending_with_parent(["taskset", "--cpu-list", ",".join(map(str, sorted(cores))), *argv])


class Server:
    """One child process with its own log and its own group, which ends with the block, at the latest with the tests."""

    def __init__(self, name: str, argv: Sequence[str], *, env: Mapping[str, str], log: Path,
                 cores: Iterable[int] | None = None, cwd: Path | None = None) -> None:  # fmt: skip
        self.name, self.log = name, log
        log.parent.mkdir(parents=True, exist_ok=True)
        with log.open("ab") as out:
            self.process = subprocess.Popen(
                ending_with_parent(argv) if cores is None else on_cores(argv, cores), stdin=subprocess.DEVNULL,
                stdout=out, stderr=subprocess.STDOUT, env={**env, "PYTHONUNBUFFERED": "1"}, cwd=cwd,
                start_new_session=True,
            )  # fmt: skip

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    @property
    def pid(self) -> int:
        """The child's process id."""
        return self.process.pid

    def is_running(self) -> bool:
        """True until it has ended."""
        return self.process.poll() is None

    def wait_for(self, url: str, body: bytes | None = None, *, timeout_s: float = LIMIT_S, key: str = "") -> bytes:
        """Send requests until one is answered with 200; return that answer. ``key``: an API key.

        Raises ``ServerFailed``.
        """
        until = time.monotonic() + timeout_s
        reason = ""
        while time.monotonic() < until:
            if not self.is_running():
                raise ServerFailed(f"{self.name} ended with {self.process.returncode}: {self.last_lines()}")
            try:
                return ask(url, body, key=key)
            except OSError as error:
                reason = describe(error)
                time.sleep(0.3)
        raise ServerFailed(f"{self.name} did not answer within {timeout_s:.0f} s ({reason}): {self.last_lines()}")

    def last_lines(self, count: int = 4) -> str:
        """Return the end of the log in one line."""
        lines = [line.strip() for line in self.log.read_text(errors="replace").splitlines() if line.strip()]
        return " | ".join(lines[-count:])[-600:]

    def end(self, *, within_s: float = LIMIT_S) -> int:
        """Send SIGTERM and wait for it to end by itself; returns its exit code. Raises ``ServerFailed``."""
        self.process.terminate()
        try:
            return self.process.wait(within_s)
        except subprocess.TimeoutExpired:
            raise ServerFailed(f"{self.name} did not end within {within_s:.0f} s: {self.last_lines()}") from None
        finally:
            self.kill()

    def stop(self) -> None:
        """Ask it to end, wait, kill what is left of its group."""
        if self.is_running():
            self.process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(8)
        self.kill()

    def kill(self) -> None:
        """Kill what is left of its group."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, signal.SIGKILL)
        self.process.wait()


def ask(url: str, body: bytes | None = None, *, timeout: float = 60.0, key: str = "") -> bytes:
    """GET, or POST ``body`` as JSON, with an API key if given, and return the content of a 200. Raises ``OSError``."""
    headers = {"content-type": "application/json", **({"authorization": f"Bearer {key}"} if key else {})}
    request = urllib.request.Request(url, data=body, headers=headers)
    with _opener.open(request, timeout=timeout) as reply:
        return bytes(reply.read())


def describe(error: OSError) -> str:
    """Return an HTTP error as text, with the beginning of its body."""
    if isinstance(error, urllib.error.HTTPError):
        return f"{error.code} {error.read()[:300].decode(errors='replace')}"
    return str(error)


# loopback never goes through a proxy
_opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))

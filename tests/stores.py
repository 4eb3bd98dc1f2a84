"""A real Redis server for tests, that can be killed, stopped and started again."""

from __future__ import annotations

import shutil
import signal
import socket
import subprocess
from pathlib import Path

from gateway.parent_death import ending_with_parent
from tests.processes import free_port
from tests.waiting import until


class RedisServer:
    """One on a free port, without data on disk, from the beginning of the block to its end."""

    def __init__(self, folder: Path, password: str = "") -> None:
        program = shutil.which("redis-server")
        assert program, (
            "redis-server is not on PATH: install Debian's redis-server, or leave these tests out: -m 'not redis'"
        )
        self._program, self._folder, self._password = program, folder, password
        self.port = free_port()
        self.url = f"redis://127.0.0.1:{self.port}/0"

    def __enter__(self) -> RedisServer:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    def start(self) -> None:
        """Start it, and wait until it answers."""
        password = ["--requirepass", self._password] if self._password else []
        with (self._folder / "redis.log").open("a") as log:
            self._process = subprocess.Popen(
                ending_with_parent([
                    self._program, "--port", str(self.port), "--bind", "127.0.0.1", "--save", "", *password
                ]), stdout=log, stderr=log, cwd=self._folder,
            )  # fmt: skip
        until(self._answers)

    def _answers(self) -> bool:
        try:
            with socket.create_connection(("127.0.0.1", self.port), timeout=1) as wire:
                wire.sendall(b"PING\r\n")
                return bool(wire.recv(1))
        except OSError:
            return False

    def freeze(self) -> None:
        """Let it stand still: connections stay open, and nothing is answered."""
        self._process.send_signal(signal.SIGSTOP)

    def thaw(self) -> None:
        """Let it go on."""
        self._process.send_signal(signal.SIGCONT)

    def kill(self) -> None:
        """Kill it; all it knew is lost."""
        self._process.kill()
        self._process.wait()

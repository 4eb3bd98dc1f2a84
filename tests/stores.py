"""A real Redis server for tests, that can be killed, stopped and started again."""

from __future__ import annotations

import os
import shutil
import signal
import socket
from pathlib import Path

from tests.processes import Server, free_port
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
        argv = [self._program, "--port", str(self.port), "--bind", "127.0.0.1", "--save", "", *password]
        self._server = Server("redis", argv, env=os.environ, log=self._folder / "redis.log", cwd=self._folder)
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
        self._server.process.send_signal(signal.SIGSTOP)

    def thaw(self) -> None:
        """Let it go on."""
        self._server.process.send_signal(signal.SIGCONT)

    def kill(self) -> None:
        """Kill it; all it knew is lost."""
        self._server.kill()

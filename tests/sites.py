"""HTTP servers of a few lines, each in a thread: what a test's program asks of a site is a function's to answer."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

NO_HEADERS: Mapping[str, str] = {}


@dataclass(frozen=True)
class Asked:
    """One request."""

    method: str
    path: str
    headers: Mapping[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        """Its content, None without one."""
        return json.loads(self.body) if self.body else None


@contextmanager
def nobody() -> Iterator[int]:
    """A port at which nobody answers, and which nobody else is given while the context is open."""
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        yield held.getsockname()[1]


@contextmanager
def site(
    answer: Callable[[Asked], tuple[int, Any]], *, protocol: str = "HTTP/1.0", headers: Mapping[str, str] = NO_HEADERS
) -> Iterator[str]:
    """Serve on a free port while the context is open; yields the address.

    ``answer`` returns a status and what is sent: bytes as they are, everything else as JSON. ``headers`` are sent with
    every answer, as they are then. Connections stay open if ``protocol`` is HTTP/1.1.
    """

    class Handler(BaseHTTPRequestHandler):
        protocol_version = protocol

        def do_GET(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"] or 0))
            status, content = answer(Asked(self.command, self.path, self.headers, body))
            sent = content if isinstance(content, bytes) else json.dumps(content).encode()
            self.send_response(status)
            self.send_header("content-type", "text/plain" if isinstance(content, bytes) else "application/json")
            self.send_header("content-length", str(len(sent)))
            for name, value in headers.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(sent)

        do_POST = do_PUT = do_DELETE = do_GET  # noqa: N815 - http.server looks for these names

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.02,))  # seconds that its end may take
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()

"""A small HTTP listener for probes and metrics of programs without a web framework: model sync and the controller."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

Answer = tuple[int, str, bytes]
"""Status code, content type and content."""


def serve(port: int, answer: Callable[[str], Answer | None], *, host: str = "0.0.0.0") -> ThreadingHTTPServer:  # noqa: S104 - the kubelet asks from outside the pod
    """Answer GET requests on ``port`` (0: a free one) in threads: ``answer(path)``, or 404 if that is None.

    Raises ``OSError`` if the port is taken. The caller shuts the returned server down.
    """

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            code, kind, content = answer(self.path) or json_answer(404, {"error": f"there is no {self.path}"})
            self.send_response(code)
            self.send_header("content-type", kind)
            self.send_header("content-length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the name it overrides
            """Keep probes out of the log."""

    server = ThreadingHTTPServer((host, port), Handler)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, name="probes", daemon=True).start()
    return server


def json_answer(code: int, body: Mapping[str, Any]) -> Answer:
    """Return an answer with a JSON object."""
    return code, "application/json", json.dumps(body).encode()


def text_answer(text: str) -> Answer:
    """Return an answer with metrics in Prometheus' text format."""
    return 200, "text/plain; version=0.0.4; charset=utf-8", text.encode()


def metrics(families: Mapping[Any, Mapping[tuple[str, ...], float]]) -> str:
    """Return metrics in Prometheus' text format.

    ``families``: a metric of the gateway's catalogue → the values of its labels → value.
    """
    return "".join(
        f"# HELP {metric.name} {metric.help}\n# TYPE {metric.name} {metric.type}\n"
        + "".join(f"{metric.name}{_labels(metric.labels, of)} {value}\n" for of, value in values.items())
        for metric, values in families.items()
    )


def _labels(names: tuple[str, ...], values: tuple[str, ...]) -> str:
    escaped = (value.replace("\\", "\\\\").replace("\n", "\\n").replace('"', '\\"') for value in values)
    found = ",".join(f'{name}="{value}"' for name, value in zip(names, escaped, strict=True))
    return f"{{{found}}}" if found else ""

"""Whether model sync is alive and its Triton may get calls: small HTTP answers for probes of containers and pods.

``/livez`` depends on nothing outside the process; ``/readyz`` keeps a Triton out of the gateways' sight until it holds
what the serving Task wants. ``Readiness`` is the rule and does no I/O; ``serve`` is the listener. Called by
``triton-gateway sync --health-port``.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

_HELD = frozenset({"ready", "leaving", "cold"})
_STUCK_S = 120.0


class Readiness:
    """Remembers what was loaded, so that a new endpoint does not take a serving Triton out of rotation.

    At its start a Triton is not ready before every wanted model is loaded or refused. Later only what it has lost (it
    was restarted) makes it unready, not what was added: gateways wait for that themselves. A model that is refused
    holds nobody up: it would be refused everywhere, and take the healthy models of all pods with it. One that could not
    be fetched does: the pods before this one hold it, and must not be replaced by empty ones.
    """

    def __init__(self) -> None:
        self._is_filled = False
        self._held: set[str] = set()
        self._lock = threading.Lock()

    def reasons(self, status: Mapping[str, Any]) -> list[str]:
        """Return why this Triton should get no calls, given ``ModelSync.status()``; empty when it may."""
        if not status["triton"]["answers"]:
            return [f"Triton at {status['triton']['address']} does not answer"]
        if not status["revision"]:
            return ["the serving Task has not been read yet"]
        states: dict[str, set[str]] = {}
        reasons: dict[str, str] = {}
        for model in status["models"]:
            is_refused = model["state"] == "failed" and model["is_final"]
            states.setdefault(model["endpoint"], set()).add("refused" if is_refused else model["state"])
            if model["state"] == "failed":
                reasons[model["endpoint"]] = model["reason"]
        with self._lock:
            waiting = [
                url for url, found in states.items()
                if not found & _HELD and "refused" not in found and (not self._is_filled or url in self._held)
            ]  # fmt: skip
            self._is_filled = self._is_filled or not waiting
            self._held = (self._held | {url for url, found in states.items() if found & _HELD}) & states.keys()
        if waiting and (refusal := status["triton"].get("error")):
            return [refusal]  # it wants another key, for instance: none of them can be loaded
        return [
            f"waiting for {url}, which could not be fetched: {reasons[url]}" if url in reasons
            else f"waiting for {url} to be loaded"
            for url in sorted(waiting)
        ]  # fmt: skip


def serve(
    port: int, status: Callable[[], Mapping[str, Any]], last_round: Callable[[], float], clock: Callable[[], float],
    *, host: str = "0.0.0.0",  # noqa: S104 - the kubelet asks from outside the pod
) -> ThreadingHTTPServer:  # fmt: skip
    """Answer ``/livez``, ``/readyz`` and ``/status`` on ``port`` (0: a free one) in threads of their own.

    ``last_round()`` is when the loop last finished a round, in ``clock()`` seconds. Raises ``OSError`` when the port is
    taken. The caller shuts the returned server down.
    """
    readiness = Readiness()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            code, body = self._answer()
            content = json.dumps(body).encode()
            self.send_response(code)
            self.send_header("content-type", "application/json")
            self.send_header("content-length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def _answer(self) -> tuple[int, Mapping[str, Any]]:
            if self.path == "/livez":
                since = clock() - last_round()
                return (200, {"live": True}) if since < _STUCK_S else (503, {"live": False, "last_round_s": since})
            if self.path == "/readyz":
                reasons = readiness.reasons(status())
                return (503 if reasons else 200), {"ready": not reasons, "reasons": reasons}
            if self.path == "/status":
                return 200, status()
            return 404, {"error": "ask /livez, /readyz or /status"}

        def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the name it overrides
            """Keep probes out of the log."""

    server = ThreadingHTTPServer((host, port), Handler)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, name="sync-health", daemon=True).start()
    return server

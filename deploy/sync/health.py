"""Answers HTTP probes of containers and pods: is model sync alive, and does its Triton have its models?

``/livez`` depends on nothing outside the process. ``/readyz`` keeps a rollout from ending the old pods until the new
Triton has what the serving Task wants. It does not decide which Triton gets calls: a gateway calls a Triton for the
models that it has. ``/metrics`` reports missing models. ``Readiness`` is the rule and ``serve`` the listener. Called by
``triton-gateway sync --health-port``.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from http.server import ThreadingHTTPServer
from typing import Any

from deploy.tools import probes
from gateway.metrics import catalog

_STUCK_S = 120.0


class Readiness:
    """Whether this Triton was filled: every wanted model was loaded or refused.

    Later only an empty Triton (it was restarted) is unready, not an added model: gateways wait for that one themselves.
    A refused model does not delay readiness, because every Triton would refuse it and the healthy models would be
    missing in all pods. A model that could not be fetched does: the old pods have it, and empty ones must not replace
    them.
    """

    def __init__(self) -> None:
        self._is_filled = False
        self._lock = threading.Lock()

    def reasons(self, status: Mapping[str, Any]) -> list[str]:
        """Return why this Triton should get no calls, given ``ModelSync.status()``; empty if it may."""
        if not status["triton"]["answers"]:
            return [f"Triton at {status['triton']['address']} does not answer"]
        if not status["revision"]:
            error = status["registry"]["error"]
            return [f"the serving Task has not been read yet{f': {error}' if error else ''}"]
        models = status["models"]
        held = {m["url"] for m in models if m["is_loaded"] or m["state"] in ("loaded", "retiring")}
        reasons = {m["url"]: m["reason"] for m in models if m["state"] == "failed"}
        waiting = {m["url"] for m in models} - held - {m["url"] for m in models if m["state"] == "refused"}
        with self._lock:
            self._is_filled = not waiting or (self._is_filled and bool(held))
            if self._is_filled:
                return []
        if refusal := status["triton"].get("error"):
            return [refusal]  # it needs another key, for instance: no model can be loaded
        return [
            f"waiting for {url}, which could not be fetched: {reasons[url]}" if url in reasons
            else f"waiting for {url} to be loaded"
            for url in sorted(waiting)
        ]  # fmt: skip


def exposition(status: Mapping[str, Any]) -> str:
    """Render ``ModelSync.status()`` in Prometheus' text format."""
    counts = dict.fromkeys(catalog.SYNC_STATES, 0)
    for model in status["models"]:
        counts[model["state"]] += 1
    return probes.metrics({catalog.SYNC_MODELS: {(state,): count for state, count in counts.items()}})


def serve(
    port: int, status: Callable[[], Mapping[str, Any]], last_round: Callable[[], float], clock: Callable[[], float],
    *, host: str = "0.0.0.0",  # noqa: S104 - the kubelet asks from outside the pod
) -> ThreadingHTTPServer:  # fmt: skip
    """Answer ``/livez``, ``/readyz``, ``/status`` and ``/metrics`` on ``port`` (0: a free one), in its own threads.

    ``last_round()`` is when the loop last finished a round, in ``clock()`` seconds. Raises ``OSError`` if the port is
    taken. The caller shuts the returned server down.
    """
    readiness = Readiness()

    def answer(path: str) -> probes.Answer | None:
        if path == "/metrics":
            return probes.text_answer(exposition(status()))
        if path == "/livez":
            since = clock() - last_round()
            is_stuck = since >= _STUCK_S
            return probes.json_answer(503 if is_stuck else 200, {"live": not is_stuck, "last_round_s": since})
        if path == "/readyz":
            reasons = readiness.reasons(status())
            return probes.json_answer(503 if reasons else 200, {"ready": not reasons, "reasons": reasons})
        return probes.json_answer(200, status()) if path == "/status" else None

    return probes.serve(port, answer, host=host)

"""When a Triton may get calls: filled at its start, not disturbed by what is added, out when it lost what it had."""

from __future__ import annotations

import time
from typing import Any

import httpx
import pytest

from deploy.sync.health import Readiness, serve
from tests.expositions import parse
from tests.waiting import LIMIT_S


def status(*models: tuple[str, str], answers: bool = True, revision: str = "r1") -> dict[str, Any]:
    """What ``ModelSync.status()`` returns, as far as readiness reads it."""
    return {
        "revision": revision, "triton": {"address": "t:8001", "answers": answers}, "registry": {"error": ""},
        "models": [
            {"url": url, "state": state, "reason": "away" if state == "failed" else "", "is_loaded": state == "loaded"}
            for url, state in models
        ],
    }  # fmt: skip


FULL = [("a", "loaded"), ("b", "loaded")]
AWAY = "waiting for b, which could not be fetched: away"
COURSES = {
    "nothing is wanted": [([], [])],
    "a call would reach a Triton without the model": [
        ([("a", "loaded"), ("b", "pending")], ["waiting for b to be loaded"]), (FULL, []),
    ],
    "what is refused would be refused in every pod": [([("a", "refused"), ("b", "refused")], [])],
    "what could not be fetched keeps an empty pod from replacing a full one; once filled, only what is lost counts": [
        ([("a", "loaded"), ("b", "failed")], [AWAY]), ([("a", "refused"), ("b", "failed")], [AWAY]), (FULL, []),
        ([*FULL, ("new", "failed")], []), ([*FULL, ("new", "pending")], []),
    ],
    "the old version answers while the new one is loaded": [
        ([("a", "loaded")], []), ([("a", "retiring"), ("a", "pending")], []),
    ],
    "a restarted Triton has lost what it had": [
        (FULL, []),
        ([("a", "pending"), ("b", "pending")], ["waiting for a to be loaded", "waiting for b to be loaded"]),
        (FULL, []),
    ],
}  # fmt: skip
"""Why → models of one round after the other, and what is said then."""


@pytest.mark.parametrize("why", COURSES)
def test_a_triton_is_ready_once_it_was_filled(why: str) -> None:
    """And until it has lost everything."""
    rule = Readiness()
    for models, reasons in COURSES[why]:
        assert reasons == rule.reasons(status(*models))


def test_a_triton_without_contact_is_not_ready() -> None:
    """An empty one that nobody filled yet, one that does not answer, an empty one that refuses the key."""
    unread = {**status(revision=""), "registry": {"error": "serving Task 5eed does not exist"}}
    assert ["the serving Task has not been read yet: serving Task 5eed does not exist"] == Readiness().reasons(unread)
    assert ["Triton at t:8001 does not answer"] == Readiness().reasons(status(("a", "loaded"), answers=False))
    rule, refused = Readiness(), status(("a", "loaded"))
    refused["triton"]["error"] = "Triton at t:8001 refuses the key"
    assert [] == rule.reasons(refused), "nothing new can be loaded, which takes nobody out"
    for state in ("failed", "pending"):
        refused["models"][0]["state"] = state
        assert [] == Readiness().reasons(refused), "it is written anew: the model that is loaded answers meanwhile"
    refused["models"][0]["is_loaded"] = False
    assert ["Triton at t:8001 refuses the key"] == rule.reasons(refused)


def test_probes_answer_over_http() -> None:
    """Alive is the loop going round; ready is the rule above. What is missing is a metric: of a Triton that serves on,
    the alert and not the readiness says that nothing new comes.
    """
    shown = status(("a", "loaded"), ("b", "failed"), ("c", "refused"), ("d", "loaded"))
    since = 0.0
    server = serve(0, lambda: shown, lambda: time.monotonic() - since, time.monotonic, host="127.0.0.1")

    def ask(path: str) -> httpx.Response:
        return httpx.get(f"http://127.0.0.1:{server.server_address[1]}{path}", timeout=LIMIT_S)

    try:
        codes = [ask(path).status_code for path in ("/livez", "/readyz", "/status", "/else")]
        metrics = [(dict(labels)["state"], value) for _, labels, value in parse(ask("/metrics").text)]
        since = 500.0
        assert (503, [200, 503, 200, 404]) == (ask("/livez").status_code, codes)
    finally:
        server.shutdown()
        server.server_close()
    assert {"loaded": 2, "failed": 1, "refused": 1, "pending": 0, "retiring": 0} == dict(metrics)

"""When a Triton may get calls: filled at its start, not disturbed by what is added, out when it lost what it had."""

from __future__ import annotations

import json
import time
import urllib.error
import urllib.request
from typing import Any

import pytest

from deploy.modelsync.health import Readiness, serve


def status(*models: tuple[str, str, *tuple[bool, ...]], answers: bool = True, revision: str = "r1") -> dict[str, Any]:
    """What ``ModelSync.status()`` returns, as far as readiness reads it."""
    return {
        "revision": revision, "triton": {"address": "t:8001", "answers": answers},
        "models": [
            {"endpoint": url, "state": state, "reason": "away" if state == "failed" else "", "is_final": any(is_final)}
            for url, state, *is_final in models
        ],
    }  # fmt: skip


def test_not_ready_before_the_serving_task_was_read() -> None:
    """An empty Triton that nobody filled yet must not get calls."""
    assert ["the serving Task has not been read yet"] == Readiness().reasons(status(revision=""))


def test_not_ready_without_triton() -> None:
    """Whatever was loaded."""
    assert ["Triton at t:8001 does not answer"] == Readiness().reasons(status(("a", "ready"), answers=False))


def test_ready_once_everything_wanted_is_loaded() -> None:
    """Not before: a call would reach a Triton without the model."""
    rule = Readiness()
    assert ["waiting for b to be loaded"] == rule.reasons(status(("a", "ready"), ("b", "loading")))
    assert [] == rule.reasons(status(("a", "ready"), ("b", "ready")))


def test_a_triton_that_refuses_the_key_serves_what_it_holds() -> None:
    """Nothing new can be loaded, which takes nobody out; one that is empty is not ready, and says why."""
    rule = Readiness()
    refused = status(("a", "ready"))
    refused["triton"]["error"] = "Triton at t:8001 refuses the key"
    assert [] == rule.reasons(refused)
    refused["models"][0]["state"] = "pending"
    assert ["Triton at t:8001 refuses the key"] == rule.reasons(refused)


def test_a_model_that_is_refused_holds_nobody_up() -> None:
    """It would be refused in every pod and take the healthy models with it."""
    assert [] == Readiness().reasons(status(("a", "ready"), ("b", "failed", True)))
    assert [] == Readiness().reasons(status(("a", "failed", True)))


def test_a_model_that_could_not_be_fetched_keeps_a_new_triton_out() -> None:
    """A rolling update would replace full pods by empty ones. Once filled, only what is lost counts."""
    rule = Readiness()
    away = ["waiting for b, which could not be fetched: away"]
    assert away == rule.reasons(status(("a", "ready"), ("b", "failed")))
    assert away == rule.reasons(status(("a", "failed", True), ("b", "failed")))
    assert [] == rule.reasons(status(("a", "ready"), ("b", "ready")))
    assert [] == rule.reasons(status(("a", "ready"), ("b", "ready"), ("new", "failed")))
    assert away == rule.reasons(status(("a", "ready"), ("b", "failed"), ("new", "failed")))


def test_an_endpoint_that_is_added_later_changes_nothing() -> None:
    """Otherwise every Triton would leave rotation at once."""
    rule = Readiness()
    assert [] == rule.reasons(status(("a", "ready")))
    assert [] == rule.reasons(status(("a", "ready"), ("new", "downloading")))


def test_a_version_being_replaced_stays_ready() -> None:
    """The old one answers while the new one is loaded."""
    rule = Readiness()
    assert [] == rule.reasons(status(("a", "ready")))
    assert [] == rule.reasons(status(("a", "leaving"), ("a", "loading")))


def test_a_restarted_triton_is_not_ready_until_it_is_filled_again() -> None:
    """It lost what it held."""
    rule = Readiness()
    assert [] == rule.reasons(status(("a", "ready"), ("b", "ready")))
    assert ["waiting for a to be loaded", "waiting for b to be loaded"] == rule.reasons(
        status(("a", "loading"), ("b", "pending"))
    )
    assert [] == rule.reasons(status(("a", "ready"), ("b", "ready")))


def test_what_is_removed_is_forgotten() -> None:
    """And may come back as something new."""
    rule = Readiness()
    assert [] == rule.reasons(status(("a", "ready"), ("b", "ready")))
    assert [] == rule.reasons(status(("a", "ready")))
    assert [] == rule.reasons(status(("a", "ready"), ("b", "loading")))


def test_no_models_wanted_is_ready() -> None:
    """There is nothing to wait for."""
    assert [] == Readiness().reasons(status())


@pytest.mark.parametrize(
    ("path", "last_round", "code"),
    [("/livez", 0, 200), ("/livez", -500, 503), ("/readyz", 0, 503), ("/status", 0, 200), ("/else", 0, 404)],
)
def test_probes_answer_over_http(path: str, last_round: float, code: int) -> None:
    """Alive is the loop going round; ready is the rule above."""
    now = time.monotonic()
    server = serve(0, lambda: status(revision=""), lambda: now + last_round, time.monotonic, host="127.0.0.1")
    try:
        url = f"http://127.0.0.1:{server.server_address[1]}{path}"
        try:
            with urllib.request.urlopen(url, timeout=5) as reply:
                found = reply.status
                assert json.loads(reply.read())
        except urllib.error.HTTPError as error:
            found = error.code
            error.close()
    finally:
        server.shutdown()
        server.server_close()
    assert code == found

"""When a Triton may get calls: filled at its start, not disturbed by what is added, out when it lost what it had."""

from __future__ import annotations

import json
import time
import urllib.error
import urllib.request
from typing import Any

import pytest

from deploy.sync.health import Readiness, exposition, serve
from tests.expositions import parse


def status(*models: tuple[str, str], answers: bool = True, revision: str = "r1") -> dict[str, Any]:
    """What ``ModelSync.status()`` returns, as far as readiness reads it."""
    return {
        "revision": revision, "triton": {"address": "t:8001", "answers": answers}, "registry": {"error": ""},
        "models": [
            {"url": url, "state": state, "reason": "away" if state == "failed" else "", "is_loaded": state == "loaded"}
            for url, state in models
        ],
    }  # fmt: skip


def test_not_ready_before_the_serving_task_was_read() -> None:
    """An empty Triton that nobody filled yet must not get calls."""
    unread = {**status(revision=""), "registry": {"error": "serving Task 5eed does not exist"}}
    assert ["the serving Task has not been read yet: serving Task 5eed does not exist"] == Readiness().reasons(unread)


def test_not_ready_without_triton() -> None:
    """Whatever was loaded."""
    assert ["Triton at t:8001 does not answer"] == Readiness().reasons(status(("a", "loaded"), answers=False))


def test_ready_once_everything_wanted_is_loaded() -> None:
    """Not before: a call would reach a Triton without the model."""
    rule = Readiness()
    assert ["waiting for b to be loaded"] == rule.reasons(status(("a", "loaded"), ("b", "pending")))
    assert [] == rule.reasons(status(("a", "loaded"), ("b", "loaded")))


def test_a_triton_that_refuses_the_key_serves_what_it_holds() -> None:
    """Nothing new can be loaded, which takes nobody out; one that is empty is not ready, and says why."""
    rule = Readiness()
    refused = status(("a", "loaded"))
    refused["triton"]["error"] = "Triton at t:8001 refuses the key"
    assert [] == rule.reasons(refused)
    refused["models"][0] |= {"state": "pending", "is_loaded": False}
    assert ["Triton at t:8001 refuses the key"] == rule.reasons(refused)


def test_a_model_that_is_refused_holds_nobody_up() -> None:
    """It would be refused in every pod and take the healthy models with it."""
    assert [] == Readiness().reasons(status(("a", "loaded"), ("b", "refused")))
    assert [] == Readiness().reasons(status(("a", "refused")))


def test_a_model_that_could_not_be_fetched_keeps_a_new_triton_out() -> None:
    """A rolling update would replace full pods by empty ones. Once filled, only what is lost counts."""
    rule = Readiness()
    away = ["waiting for b, which could not be fetched: away"]
    assert away == rule.reasons(status(("a", "loaded"), ("b", "failed")))
    assert away == rule.reasons(status(("a", "refused"), ("b", "failed")))
    assert [] == rule.reasons(status(("a", "loaded"), ("b", "loaded")))
    assert [] == rule.reasons(status(("a", "loaded"), ("b", "loaded"), ("new", "failed")))


def test_an_endpoint_that_is_added_later_changes_nothing() -> None:
    """Otherwise every Triton would leave rotation at once."""
    rule = Readiness()
    assert [] == rule.reasons(status(("a", "loaded")))
    assert [] == rule.reasons(status(("a", "loaded"), ("new", "pending")))


def test_a_version_being_replaced_stays_ready() -> None:
    """The old one answers while the new one is loaded."""
    rule = Readiness()
    assert [] == rule.reasons(status(("a", "loaded")))
    assert [] == rule.reasons(status(("a", "retiring"), ("a", "pending")))


def test_a_restarted_triton_is_not_ready_until_it_is_filled_again() -> None:
    """It lost what it held."""
    rule = Readiness()
    assert [] == rule.reasons(status(("a", "loaded"), ("b", "loaded")))
    assert ["waiting for a to be loaded", "waiting for b to be loaded"] == rule.reasons(
        status(("a", "pending"), ("b", "pending"))
    )
    assert [] == rule.reasons(status(("a", "loaded"), ("b", "loaded")))


def test_no_models_wanted_is_ready() -> None:
    """There is nothing to wait for."""
    assert [] == Readiness().reasons(status())


@pytest.mark.parametrize(
    ("path", "last_round", "code"),
    [
        ("/livez", 0, 200),
        ("/livez", -500, 503),
        ("/readyz", 0, 503),
        ("/status", 0, 200),
        ("/metrics", 0, 200),
        ("/else", 0, 404),
    ],
)
def test_probes_answer_over_http(path: str, last_round: float, code: int) -> None:
    """Alive is the loop going round; ready is the rule above."""
    now = time.monotonic()
    shown = {**status(revision=""), "registry": {"error": "", "last_contact": None}}
    server = serve(0, lambda: shown, lambda: now + last_round, time.monotonic, host="127.0.0.1")
    try:
        url = f"http://127.0.0.1:{server.server_address[1]}{path}"
        try:
            with urllib.request.urlopen(url, timeout=60) as reply:
                found = reply.status
                assert path == "/metrics" or json.loads(reply.read())
        except urllib.error.HTTPError as error:
            found = error.code
            error.close()
    finally:
        server.shutdown()
        server.server_close()
    assert code == found


def test_what_triton_has_loaded_is_held_whatever_model_sync_does_about_it() -> None:
    """Written anew by another release, or not fetched for that: the model that is loaded answers meanwhile."""
    rule = Readiness()
    for state in ("failed", "pending"):
        found = status(("a", state))
        found["models"][0]["is_loaded"] = True
        assert [] == rule.reasons(found)


def test_what_model_sync_lacks_is_a_metric() -> None:
    """Of a Triton that serves on, the alert and not the readiness says that nothing new comes."""
    found = status(("a", "loaded"), ("b", "failed"), ("c", "refused"), ("d", "loaded"))
    text = exposition(found)
    for line in (
        'model_sync_models{state="loaded"} 2', 'model_sync_models{state="failed"} 1',
        'model_sync_models{state="refused"} 1', 'model_sync_models{state="pending"} 0',
    ):  # fmt: skip
        assert line in text.splitlines()
    assert {"model_sync_models"} == {name for name, _, _ in parse(text)}

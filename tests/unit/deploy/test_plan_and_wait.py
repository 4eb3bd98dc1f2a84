"""What `plan` says would change, and what `wait` waits for."""

from __future__ import annotations

import json

import pytest

from deploy.commands.plan import changes
from deploy.commands.wait import missing
from gateway.control.compile import compile_spec
from gateway.spec import decode


def plan_of(endpoints, canary=None):
    """The plan of a serving Task with these endpoints (url to model id)."""
    entries = {url: {"serving_url": url.partition("/")[0], "version": url.partition("/")[2], "engine_type": "triton",
                     "model_id": model} for url, model in endpoints.items()}  # fmt: skip
    texts = {"endpoints": json.dumps(entries), "canary": json.dumps(canary or {})}
    return compile_spec(decode({"configuration": {n: {"value": t} for n, t in texts.items()}}), default_triton="")


def status_of(endpoints, canaries=None):
    """What a gateway says that serves these."""
    return {"endpoints": [{"url": u, "model_id": m} for u, m in endpoints.items()], "canaries": canaries or {}}


def test_nothing_to_do_is_nothing():
    """Shares are compared as they are shown."""
    canary = {"e": {"endpoint": "e", "weights": [1, 3], "load_endpoints": ["e/2", "e/1"]}}
    plan = plan_of({"e/1": "a", "e/2": "b"}, canary)
    status = status_of({"e/1": "a", "e/2": "b"}, {"e": {"e/2": 0.25, "e/1": 0.75}})
    assert {"changes": [], "faults": []} == changes(plan, {}, status)


def test_additions_changes_and_removals_are_told_apart():
    """Of endpoints and of canaries."""
    canary = {"e": {"endpoint": "e", "weights": [1, 1], "load_endpoints": ["e/2", "e/1"]}}
    plan = plan_of({"e/1": "new", "e/2": "b"}, canary)
    found = changes(plan, {}, status_of({"e/1": "old", "f": "c"}, {"e": {"e/1": 1.0}, "g": {"e/1": 1.0}}))
    assert [
        ("change", "e/1", "old → new"),
        ("add", "e/2", "b"),
        ("remove", "f", ""),
        ("change", "canary e", "100.0% e/1 → 50.0% e/1, 50.0% e/2"),
        ("remove", "canary g", "100.0% e/1 → -"),
    ] == [(c["what"], c["subject"], c["how"]) for c in found["changes"]]


def test_changed_code_and_options_are_changes():
    """Of the same model; a gateway that does not say what it serves is not guessed about."""
    plan = plan_of({"e/1": "a"})
    status = status_of({"e/1": "a"})
    status["endpoints"][0]["content"] = plan.endpoints["e/1"].content
    assert [] == changes(plan, {}, status)["changes"]
    status["endpoints"][0]["content"] = "other"
    assert [("change", "its files, code or options")] == [
        (c["what"], c["how"]) for c in changes(plan, {}, status)["changes"]
    ]


def test_faults_of_the_task_and_of_its_models_are_listed():
    """The same ones a gateway would find."""
    canary = {"e": {"endpoint": "e", "weights": [0], "load_endpoints": ["e/1"]}}
    found = changes(plan_of({"e/1": "a"}, canary), {"a": "is not in the registry"}, status_of({"e/1": "a"}))
    assert ["canary e", "endpoint e/1"] == [fault["subject"] for fault in found["faults"]]


@pytest.mark.parametrize(
    ("status", "reason", "failed"),
    [
        (None, "does not answer", False),
        ({"spec_revision": "old"}, "has not seen the change yet", False),
        ({"spec_revision": "r", "pending": [{"url": "e", "state": "building", "reason": "loading"}]},
         "e is building: loading", False),
        ({"spec_revision": "r", "endpoints": [{"url": "e", "successor": {"state": "failed", "reason": "no"}}]},
         "e failed: no", True),
        ({"spec_revision": "r", "pending": [], "endpoints": [{"url": "e", "successor": None}]}, "", False),
    ],
)  # fmt: skip
def test_a_change_is_live_when_it_was_seen_and_everything_is_built(status, reason, failed):
    """A new version that is still building behind the old one is not live yet."""
    assert (reason, failed) == missing(status, "r")

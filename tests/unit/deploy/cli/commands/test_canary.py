"""``triton-gateway canary run``: what it compares by default, and what it refuses before any traffic."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from deploy.cli import new_rollout
from deploy.controller import plain
from deploy.controller.rollouts.steps import Rollout
from deploy.tools.errors import DeployError
from tests.fakes import FakeRegistry

CLASSIFIER = {"task": "text-classification", "labels": ["NEGATIVE", "POSITIVE"]}


def planned(stable: Mapping[str, Any], new: Mapping[str, Any], **chosen: Any) -> Rollout:
    """Return the rollout of ``e/2`` beside ``e/1``; ``stable`` and ``new``: their details in a gateway's status."""
    registry = FakeRegistry()
    for version in "12":
        registry.add_endpoint("e", f"m{version}", version=version)
    served = [{"url": f"e/{v}", "details": dict(d)} for v, d in (("1", stable), ("2", new))]
    options = {
        "steps": "5,100", "min_requests": 200, "step_time": 60.0, "slower": 10.0, "label_shift": 10.0, "mirror": None,
        "other_answers": 10.0, "new_labels": False, **chosen,
    }  # fmt: skip
    return new_rollout.planned(registry.spec(), "e", "2", None, served, **options)


EMBEDDINGS = {"task": "sentence-embeddings"}
CODE = {**CLASSIFIER, "stages": ["preprocess"]}


@pytest.mark.parametrize(
    ("details", "chosen", "compared"),
    [
        (CLASSIFIER, {}, (0.1, 0.1, 10.0)),
        (EMBEDDINGS, {}, (0.1, 0.1, 10.0)),
        ({}, {}, (0.1, 0.0, 0.0)),
        ({"task": "text-generation"}, {}, (0.1, 0.0, 0.0)),
        (CODE, {}, (0.1, 0.0, 0.0)),
        (CODE, {"mirror": 2.0}, (0.1, 0.1, 2.0)),
        (CLASSIFIER, {"label_shift": 0.0, "mirror": 0.0}, (0.0, 0.0, 0.0)),
    ],
    ids=["classifier", "embeddings", "unknown", "may vary", "users' code", "users' code, by option", "off"],
)
def test_what_is_compared(details: Mapping[str, Any], chosen: Mapping[str, Any], compared: tuple[float, ...]) -> None:
    """Labels, and mirrored answers of what surely answers the same again: code may have side effects."""
    rollout = planned(details, details, **chosen)
    assert compared == (rollout.gate.label_shift, rollout.gate.other_answers, rollout.rules.mirror)


@pytest.mark.parametrize(
    ("steps", "shares"),
    [("5,100", (5.0, 100.0)), ("1,5.5", (1.0, 5.5, 100.0)), ("a", None), ("5,5", None), ("0,5", None), ("100", None),
     ("5,101", None)],
)  # fmt: skip
def test_steps_grow_up_to_all_requests(steps: str, shares: tuple[float, ...] | None) -> None:
    """With a first step of 100, nothing could be compared."""
    if shares is None:
        with pytest.raises(DeployError, match="--steps"):
            new_rollout.percents(steps)
    else:
        assert shares == new_rollout.percents(steps)


@pytest.mark.parametrize(
    ("labels", "message", "names"),
    [
        (["POSITIVE", "NEGATIVE"],
         "the labels of e/2 are in another order: POSITIVE, NEGATIVE; e/1 has NEGATIVE, POS", {}),
        (["bad", "good"], "the labels of e/2 have other names: bad, good", {"bad": "NEGATIVE", "good": "POSITIVE"}),
    ],
)  # fmt: skip
def test_labels_of_another_name_or_order_are_refused_before_any_traffic(
    labels: list[str], message: str, names: dict[str, str]
) -> None:
    """Unless --new-labels is given. New names mean those at their position; a name that both have means itself."""
    new = {**CLASSIFIER, "labels": labels}
    with pytest.raises(DeployError, match=message):
        planned(CLASSIFIER, new)
    rollout = planned(CLASSIFIER, new, new_labels=True)
    assert names == rollout.rules.names
    assert rollout.rules == plain.read(Rollout, json.loads(json.dumps(rollout.to_json()))).rules


REFUSED = "e/1 already answers"


@pytest.mark.parametrize(
    ("to", "default", "weights", "versions", "found"),
    [
        ("e/1", "", {"e/2": 0.1, "e/3": 0.9}, "123", "e/3"),
        ("e/3", "e/2", {}, "123", "e/2"),
        ("e/2", "", {}, "12", "e/1"),
        ("e/3", "", {}, "123", "which version is the stable one"),
        ("e/1", "e/1", {}, "12", REFUSED),
        ("e/1", "", {"e/1": 0.9, "e/2": 0.1}, "123", REFUSED),
        ("e/1", "", {"e/2": 0.0, "e/1": 1.0}, "12", REFUSED),
    ],
    ids=["largest share", "default", "only other", "unclear", "default already", "most already", "all already"],
)
def test_what_answers_now_is_the_stable_version(
    to: str, default: str, weights: Mapping[str, float], versions: str, found: str
) -> None:
    """A first step to what answers already would send nearly all requests to another, untested version."""
    registry = FakeRegistry()
    for version in versions:
        registry.add_endpoint("e", f"m{version}", version=version)
    if weights:
        registry.canary["e"] = {"endpoint": "e", "weights": [*weights.values()], "load_endpoints": [*weights]}
    serving = replace(registry.spec(), defaults={"e": default} if default else {})
    if found.startswith("e/") and " " not in found:
        assert found == new_rollout.stable_of(serving, "e", to)
    else:
        with pytest.raises(DeployError, match=found) as caught:
            new_rollout.stable_of(serving, "e", to)
        assert "--from" in caught.value.hint

"""``triton-gateway canary run``: what it compares by default, and what it refuses before any traffic."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import click
import pytest

from deploy.cli import new_rollout
from deploy.cli.commands import canary
from deploy.controller import plain
from deploy.controller.rollouts.steps import Rollout
from deploy.tools.errors import DeployError
from tests.fakes import FakeRegistry
from tests.unit.deploy.controller.rollouts.world import World, fresh

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
    [("5,100", (5.0, 100.0)), ("1,5.5", (1.0, 5.5, 100.0)), ("", None), ("a", None), ("5,5", None), ("0,5", None),
     ("100", None), ("5,101", None), ("20,10", None)],
)  # fmt: skip
def test_steps_grow_up_to_all_requests(steps: str, shares: tuple[float, ...] | None) -> None:
    """With a first step of 100, nothing could be compared."""
    if shares is None:
        with pytest.raises(DeployError, match="--steps"):
            new_rollout.percents(steps)
    else:
        assert shares == new_rollout.percents(steps)


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        (["POSITIVE", "NEGATIVE"], "the labels of e/2 are in another order: POSITIVE, NEGATIVE; e/1 has NEGATIVE, POS"),
        (["LABEL_0", "LABEL_1"], "the labels of e/2 have other names: LABEL_0, LABEL_1"),
    ],
)
def test_labels_of_another_name_or_order_are_refused_before_any_traffic(labels: list[str], message: str) -> None:
    """They are accepted only with --new-labels."""
    new = {**CLASSIFIER, "labels": labels}
    with pytest.raises(DeployError, match=message):
        planned(CLASSIFIER, new)
    assert planned(CLASSIFIER, new, new_labels=True).gate.other_answers


def test_new_names_of_labels_are_compared_as_what_they_mean() -> None:
    """By position; a name that both have means itself, so another order alone changes nothing."""
    named = planned(CLASSIFIER, {**CLASSIFIER, "labels": ["bad", "good"]}, new_labels=True)
    assert {"bad": "NEGATIVE", "good": "POSITIVE"} == named.rules.names
    assert named.rules == plain.read(Rollout, json.loads(json.dumps(named.to_json()))).rules
    turned = planned(CLASSIFIER, {**CLASSIFIER, "labels": ["POSITIVE", "NEGATIVE"]}, new_labels=True)
    assert {} == turned.rules.names


def stable(to: str, default: str = "", weights: Mapping[str, float] | None = None, versions: str = "123") -> str:
    """Return the version that a rollout of ``e`` to ``to`` is compared with if nobody names it."""
    registry = FakeRegistry()
    for version in versions:
        registry.add_endpoint("e", f"m{version}", version=version)
    if weights:
        registry.canary["e"] = {
            "endpoint": "e", "weights": list(weights.values()), "load_endpoints": list(weights),
        }  # fmt: skip
    serving = registry.spec()
    return new_rollout.stable_of(replace(serving, defaults={"e": default} if default else {}), "e", to)


def test_what_answers_now_is_the_stable_version() -> None:
    """The version with the largest share of a canary, otherwise the default version, otherwise the only other one."""
    assert "e/3" == stable("e/1", weights={"e/2": 0.1, "e/3": 0.9})
    assert "e/2" == stable("e/3", default="e/2")
    assert "e/1" == stable("e/2", versions="12")
    with pytest.raises(DeployError, match="which version is the stable one") as caught:
        stable("e/3")
    assert "--from" in caught.value.hint


@pytest.mark.parametrize(
    ("default", "weights"), [("e/1", None), ("", {"e/1": 0.9, "e/2": 0.1}), ("", {"e/2": 0.0, "e/1": 1.0})],
)  # fmt: skip
@pytest.mark.parametrize("versions", ["12", "123"])
def test_a_rollout_to_what_answers_already_is_refused(
    default: str, weights: Mapping[str, float] | None, versions: str
) -> None:
    """Its first step would send nearly all requests to another, untested version."""
    with pytest.raises(DeployError, match=r"e/1 already answers .* requests for e without a version"):
        stable("e/1", default, weights, versions)


def test_the_end_and_the_status_name_the_way_back(capsys: pytest.CaptureFixture[str]) -> None:
    """While it runs that is its end, after a promotion the version before, after an end without one nothing."""
    world = World()
    controller = world.begin(fresh())

    def status(*, as_json: bool = False) -> str:
        with click.Context(canary.status):
            canary.status.callback.__wrapped__(endpoint="e", as_json=as_json, open_registry=lambda: world)
        return capsys.readouterr().out

    assert "e: the way back: triton-gateway canary abort --endpoint e\n" in status()
    world.finish(controller)
    assert status().endswith("e: the way back: triton-gateway default e 1\n")
    assert "triton-gateway default e 1" == json.loads(status(as_json=True))[0]["way_back"]
    assert 0 == canary._follow(world, "e", None)
    assert capsys.readouterr().out.endswith("\nthe way back: triton-gateway default e 1\n")
    controller = world.begin(fresh(), controller)
    world.ask("abort")
    world.finish(controller)
    assert "way back" not in status()


def test_a_gateway_that_shows_no_versions_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    """Nobody takes labels for checked that nothing could look at."""
    assert not canary._served(["http://127.0.0.1:9"])
    assert "no gateway at http://127.0.0.1:9 shows its versions" in capsys.readouterr().err

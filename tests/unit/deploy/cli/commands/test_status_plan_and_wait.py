"""`status --plan` shows what would change, and `status --wait` waits for it."""

from __future__ import annotations

import inspect
import json
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import pytest

from deploy.cli.commands.status import changes, command, described
from deploy.cli.until_live import missing
from deploy.controller import default_versions
from deploy.controller.wanted import carry_out
from deploy.tools.errors import DeployError
from gateway.preview import preview
from gateway.spec import ServingTask, decode
from tests.fakes import FakeRegistry
from tests.sites import site
from tests.waiting import LIMIT_S


def plan_of(endpoints, canary=None, *, models=None):
    """Return a gateway's plan of a serving Task with these endpoints (url to model id)."""
    registry = FakeRegistry()
    registry.canary = canary or {}
    for url, model in endpoints.items():
        registry.add_endpoint(url.partition("/")[0], model, version=url.partition("/")[2])
        registry.add_model(model, Path(f"/{model}.onnx"))
    if models is not None:
        registry.models = models
    return preview(registry, registry.spec())


def status_of(endpoints, canaries=None):
    """Return the status of a gateway that serves these."""
    return {"endpoints": [{"url": u, "model_id": m} for u, m in endpoints.items()], "canaries": canaries or {}}


HALVES = {"e": {"endpoint": "e", "weights": [1, 1], "load_endpoints": ["e/2", "e/1"]}}


@pytest.mark.parametrize(
    ("endpoints", "status", "found"),
    [
        ({"e/1": "a", "e/2": "b"}, status_of({"e/1": "a", "e/2": "b"}, {"e": {"e/2": 0.5, "e/1": 0.5}}), []),
        ({"e/1": "new", "e/2": "b"}, status_of({"e/1": "old", "f": "c"}, {"e": {"e/1": 1.0}, "g": {"e/1": 1.0}}),
         [("change", "e/1", "old → new"), ("add", "e/2", "b"), ("remove", "f", ""),
          ("change", "canary e", "100.0% e/1 → 50.0% e/1, 50.0% e/2"), ("remove", "canary g", "")]),
    ],
    ids=["nothing to do", "all kinds"],
)  # fmt: skip
def test_additions_changes_and_removals_are_told_apart(endpoints, status, found):
    """Of endpoints and of canaries, whose shares are compared as displayed."""
    told = changes(plan_of(endpoints, HALVES), status)
    assert (found, []) == ([(c["what"], c["subject"], c["how"]) for c in told["changes"]], told["faults"])
    assert (found == []) == (described("g", told) == ["g already serves everything in the serving Task"])


def test_faults_of_the_task_and_of_its_models_are_listed():
    """They are the faults that a gateway would find."""
    canary = {"e": {"endpoint": "e", "weights": [0], "load_endpoints": ["e/1"]}}
    found = changes(plan_of({"e/1": "a"}, canary, models={}), status_of({"e/1": "a"}))
    assert ["canary e", "endpoint e/1"] == [fault["subject"] for fault in found["faults"]]


@pytest.mark.parametrize(
    ("status", "reason", "outlook"),
    [
        (None, "does not answer", "open"),
        ({"spec_revision": "old"}, "has not seen the change yet", "open"),
        ({"spec_revision": "r", "pending": [{"url": "e", "state": "building", "reason": "loading"}]},
         "e is building: loading", "open"),
        ({"spec_revision": "r", "endpoints": [{"url": "e", "successor": {"state": "failed", "reason": "no"}}]},
         "e failed: no", "failing"),
        ({"spec_revision": "r", "pending": [
            {"url": "e", "state": "failed", "reason": "away"},
            {"url": "f", "state": "failed", "reason": "model sync refuses the model: no", "is_final": True}]},
         "e failed: away; f failed: model sync refuses the model: no", "final"),
        ({"spec_revision": "r", "pending": [{"url": "e", "state": "refused", "reason": "no model"}]},
         "e failed: no model", "final"),
        ({"spec_revision": "r", "pending": [], "endpoints": [{"url": "e", "successor": None}]}, "", "open"),
    ],
)  # fmt: skip
def test_a_change_is_live_when_it_was_seen_and_everything_is_built(status, reason, outlook):
    """A new version that is still building behind the old one is not live yet."""
    assert (reason, outlook) == missing(status, "r")


def test_of_one_endpoint_only_its_own_state_counts():
    """`deploy` does not fail because of others; one that was removed meanwhile will not come."""
    status = {"spec_revision": "r", "endpoints": [{"url": "e"}],
              "pending": [{"url": "f", "state": "refused", "reason": "no model"}]}  # fmt: skip
    assert ("", "open") == missing(status, "r", "e")
    assert ("f failed: no model", "final") == missing(status, "r", "f")
    assert ("g is not in the serving Task", "final") == missing(status, "r", "g")


class Following:
    """A serving Task that changes while `status --wait` waits, and a gateway that follows one look later."""

    def __init__(self, *names, pending=()):
        self.tasks = [ServingTask(sections={"endpoints": json.dumps({
            name: {"engine_type": "triton", "serving_url": name, "model_id": "m"}})}) for name in names]  # fmt: skip
        self.pending = list(pending)
        self.asked = 0

    def spec(self):
        return decode(self.tasks[0])

    def change(self):
        """Change the Task, as somebody else would."""
        if len(self.tasks) > 1:
            del self.tasks[0]

    def status(self):
        self.asked += 1
        if self.asked == 2:
            self.change()
        return {"spec_revision": self.spec().revision, "pending": self.pending, "endpoints": []}


@pytest.fixture
def wait():
    """The command on a store, with a gateway on a real port that answers what the store's gateway says."""
    with ExitStack() as sites:

        def run(store, *arguments):
            address = sites.enter_context(site(lambda _: (200, store.status())))
            values = command.make_context("status", ["--wait", "--url", address, *arguments]).params
            given = {name: values[name] for name in ("gateways", "timeout", "as_json", "plans", "waits")}
            return inspect.unwrap(command.callback)(**given, open_registry=lambda: store)

        yield run


def test_a_change_made_meanwhile_is_waited_for_too(wait):
    """After a change by auto-update or a colleague, `status --wait` waits for the current Task."""
    assert 0 == wait(Following("a", "b"), "--timeout", "300s")


def test_a_gateway_that_follows_another_task_is_not_waited_for(wait, capsys):
    """It would never serve what this one says."""
    store = Following("a")
    store.status = lambda: {"serving_task": {"id": "other", "name": "theirs"}}
    assert 3 == wait(store, "--timeout", "300s")
    assert "follows another serving Task, theirs (other)" in capsys.readouterr().err


@pytest.mark.parametrize("keeps", [True, False])
def test_the_name_without_a_version_is_waited_for(wait, capsys, monkeypatch, keeps):
    """The controller records after `model add` which version it means. Without a controller it says what lacks."""
    monkeypatch.setattr("deploy.controller.default_versions.RECORDED_S", LIMIT_S if keeps else 0.5)
    registry = FakeRegistry()
    registry.add_endpoint("e", "m", version="1")
    store = Following()
    store.tasks = [registry.task()]
    if keeps:
        carry_out(registry, registry.task(), default_versions.recorded)
        store.tasks.append(registry.task())
    assert 0 == wait(store, "--timeout", "600s")
    assert keeps == ("e" in store.spec().defaults)
    assert keeps == ("triton-gateway default e VERSION" not in capsys.readouterr().err)


def test_what_will_not_become_better_is_not_waited_for(wait, capsys):
    """A refusal by model sync ends it at once, with its reason."""
    reason = "model sync refuses the model: it holds no files"
    store = Following("a", pending=[{"url": "a", "state": "failed", "reason": reason, "is_final": True}])
    assert 3 == wait(store, "--timeout", "300s")
    assert 1 == store.asked
    assert f"a failed: {reason}" in capsys.readouterr().err


def test_a_section_that_nobody_can_read_ends_it_at_once(wait):
    """Gateways keep their old configuration, so waiting is useless."""
    store = Following("a")
    store.tasks[0] = replace(store.tasks[0], sections={"endpoints": "br{ace {"})
    with pytest.raises(DeployError, match="section endpoints "):
        wait(store, "--timeout", "300s")

"""``triton-gateway status``: what it prints, its exit code, what would change (`--plan`), and the wait for it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from deploy.cli.commands.status import changes, command, describe, described
from deploy.cli.main import main
from deploy.cli.until_live import missing
from deploy.controller import default_versions
from deploy.controller.wanted import carry_out
from deploy.tools.errors import DeployError
from gateway.preview import preview
from gateway.spec import ServingSpec, ServingTask, decode
from tests.fakes import FakeRegistry
from tests.sites import Asked, nobody, site
from tests.unit.deploy.cli.commands.on_store import run
from tests.waiting import LIMIT_S

SERVED: dict[str, Any] = {
    "ready": True, "not_ready_because": [], "faults": [], "pending": [], "canaries": {},
    "endpoints": [{"url": "minilm", "model_id": "m1", "model_name": "MiniLM", "state": "serving"}],
}  # fmt: skip


def test_json_is_what_the_gateway_says_and_all_there_is_on_stdout(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Programs can read it; the exit code says that all is well. The key of the environment is sent with it."""
    asked: list[Asked] = []
    monkeypatch.setenv("TRITON_GATEWAY_KEY", "tgk_a_b")
    with site(lambda one: (asked.append(one), (200, SERVED))[1]) as address:
        assert 0 == main(["status", "--json", "--url", address])
    shown = capsys.readouterr()
    assert (SERVED, "") == (json.loads(shown.out), shown.err)
    assert "Bearer tgk_a_b" == asked[0].headers.get("authorization")


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"ready": False, "not_ready_because": ["x waits"],
          "pending": [{"url": "x", "state": "building", "reason": "Triton does not have it"}],
          "faults": [{"subject": "endpoint y", "message": "no model"}]},
         ("not ready: x waits", "minilm", "m1", "Triton does not have it", "endpoint y: no model")),
        ({"triton": {"triton:8001": False}}, ("Triton at triton:8001 does not answer",)),
        ({"spec_revision": "r", "registry": {"last_contact": 1795399200.0, "error": "ClearML refuses the credentials"}},
         ("out of date (read 2026-11-23T02:00:00Z)", "ClearML refuses the credentials")),
        ({"endpoints": [{**SERVED["endpoints"][0], "successor": {"state": "failed", "reason": "bad weights"}}],
          "shadows": {"e": {"to": "e/2", "percent": 5.0, "is_on": True, "last_failure": "no memory"}}},
         ("serving; its new version is failed: bad weights", "shadow e: 5 % to e/2 (last failure: no memory)")),
    ],
    ids=["not ready", "no Triton", "registry away", "failed behind a serving one"],
)  # fmt: skip
def test_what_is_not_served_is_told_and_the_exit_code_says_so(
    changed: dict[str, Any], said: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    """Also if requests are answered: by an older configuration or version, or by endpoints without Triton."""
    with site(lambda _: (200, {**SERVED, **changed})) as address:
        assert 3 == main(["status", "--url", address])
    text = capsys.readouterr().out
    assert [] == [one for one in said if one not in text]


@pytest.mark.parametrize(
    ("url", "said"),
    [("http://127.0.0.1:PORT", "triton-gateway up"), ("nonsense", "--url"), ("http://[::bad", "--url"),
     ("ftp://127.0.0.1:1", "--url"), ("404", "--url"), ("401", "TRITON_GATEWAY_KEY")],
)  # fmt: skip
def test_what_answers_no_status_is_refused_in_a_line(url: str, said: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Nobody, an address that is none, a server of another kind, and a gateway that wants a key."""
    with nobody() as port, site(lambda _: (int(url), None)) as address:
        given = address if url.isdecimal() else url.replace("PORT", str(port))
        assert 1 == main(["status", "--json", "--url", given])
    shown = capsys.readouterr()
    assert ("", 1) == (shown.out, len(shown.err.splitlines()))
    assert said in shown.err


SHARED = "has the same file as others (…)"
ROLLOUT = {"canary": "clf/3", "weight": 5.0, "why": "too few requests", "guard": "host 1a2b", "phase": "running"}


@pytest.mark.parametrize(
    ("status", "lines"),
    [
        ({"faults": [{"subject": f"model {name}", "message": SHARED} for name in "abc"]},
         [f"fault in model a, model b, model c: {SHARED}"]),
        ({"pending": [{"url": f"f/{n}", "state": "loading", "reason": "waits"} for n in range(12)]},
         [f"{', '.join(f'f/{n}' for n in range(10))} and 2 more: loading: waits"]),
        ({"rollouts": [{**ROLLOUT, "endpoint": "clf"}, {**ROLLOUT, "endpoint": "zc", "guard": ""},
                       {**ROLLOUT, "endpoint": "old", "phase": "promoted"}]},
         ["rollout clf: clf/3 has 5 %, running, guarded by host 1a2b: too few requests",
          "rollout zc: clf/3 has 5 %, running, nobody guards it: too few requests"]),
        ({"lost": [{"endpoint": "faq/2", "restore": "clearml-serving …"}]},
         ["lost faq/2: another ClearML client wrote back a copy of the Task that it had read before; if it was not "
          "removed on purpose: clearml-serving …"]),
    ],
    ids=["faults of many", "many of a state", "rollout", "lost"],
)  # fmt: skip
def test_what_a_gateway_tells_is_told_once(status: dict[str, Any], lines: list[str]) -> None:
    """Each in its line; rollouts that have ended are not."""
    found = describe("http://g", {"ready": True, **status})
    kinds = ("fault", "f/0, ", "rollout", "lost")
    assert lines == [line for line in found if line.startswith(kinds)]


# --- what would change


def test_additions_changes_removals_and_faults_are_told_apart() -> None:
    """Of endpoints and of canaries, whose shares are compared as displayed; faults are those a gateway would find."""
    registry = FakeRegistry()
    for version, model in (("1", "new"), ("2", "b")):
        registry.add_endpoint("e", model, version=version)
        registry.add_model(model, Path(f"/{model}.onnx"))
    registry.canary = {"e": {"endpoint": "e", "weights": [1, 1], "load_endpoints": ["e/2", "e/1"]}}

    def told(models: Mapping[str, str], canaries: Mapping[str, Any]) -> dict[str, Any]:
        endpoints = [{"url": url, "model_id": model} for url, model in models.items()]
        return changes(preview(registry, registry.spec()), {"endpoints": endpoints, "canaries": canaries})

    same = told({"e/1": "new", "e/2": "b"}, {"e": {"e/2": 0.5, "e/1": 0.5}})
    assert (([], []), ["g already serves everything in the serving Task"]) == (
        (same["changes"], same["faults"]), described("g", same),
    )  # fmt: skip
    found = told({"e/1": "old", "f": "c"}, {"e": {"e/1": 1.0}, "g": {"e/1": 1.0}})
    assert [
        "~ e/1  old → new", "+ e/2  b", "- f", "~ canary e  100.0% e/1 → 50.0% e/1, 50.0% e/2", "- canary g",
    ] == described("g", found)  # fmt: skip
    registry.canary["e"]["weights"] = [0, 0]
    registry.models.clear()
    assert ["canary e", "endpoint e/1", "endpoint e/2"] == [one["subject"] for one in told({}, {})["faults"]]


# --- waiting


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
def test_a_change_is_live_when_it_was_seen_and_everything_is_built(status: Any, reason: str, outlook: str) -> None:
    """A new version that is still building behind the old one is not live yet. Of one endpoint only its own state
    counts: `deploy` does not fail because of others; one that was removed meanwhile will not come.
    """
    assert (reason, outlook) == missing(status, "r")
    status = {"spec_revision": "r", "endpoints": [{"url": "e"}],
              "pending": [{"url": "f", "state": "refused", "reason": "no model"}]}  # fmt: skip
    assert [("", "open"), ("f failed: no model", "final"), ("g is not in the serving Task", "final")] == [
        missing(status, "r", only) for only in "efg"
    ]


class Following:
    """A serving Task that becomes the next of ``tasks`` while `status --wait` waits, and a gateway that follows."""

    def __init__(self, *tasks: ServingTask, **status: Any) -> None:
        self.tasks = list(tasks)
        self.said = status
        self.asked = 0

    def spec(self) -> ServingSpec:
        return decode(self.tasks[0])

    def status(self) -> dict[str, Any]:
        self.asked += 1
        if self.asked == 2 and len(self.tasks) > 1:
            del self.tasks[0]
        return {"spec_revision": self.spec().revision, "pending": [], "endpoints": [], **self.said}

    def wait(self) -> int:
        """Run `status --wait` with this gateway on a real port."""
        with site(lambda _: (200, self.status())) as address:
            return run(command, self, "--wait", "--url", address, "--timeout", "600s")


def task_of(name: str) -> ServingTask:
    """A Task with one endpoint."""
    return ServingTask(sections={"endpoints": json.dumps({
        name: {"engine_type": "triton", "serving_url": name, "model_id": "m"}})})  # fmt: skip


def test_a_change_made_meanwhile_is_waited_for_too() -> None:
    """After a change by auto-update or a colleague, `status --wait` waits for the current Task."""
    assert 0 == Following(task_of("a"), task_of("b")).wait()


@pytest.mark.parametrize(
    ("status", "said"),
    [
        ({"serving_task": {"id": "other", "name": "theirs"}}, "follows another serving Task, theirs (other)"),
        ({"pending": [{"url": "a", "state": "failed", "reason": "it holds no files", "is_final": True}]},
         "a failed: it holds no files"),
    ],
    ids=["another Task", "model sync refuses it"],
)  # fmt: skip
def test_what_will_not_become_better_is_not_waited_for(
    status: dict[str, Any], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """It ends at once, with the reason."""
    store = Following(task_of("a"), **status)
    assert (3, 1) == (store.wait(), store.asked)
    assert said in capsys.readouterr().err


@pytest.mark.parametrize("keeps", [True, False])
def test_the_name_without_a_version_is_waited_for(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, keeps: bool
) -> None:
    """The controller records after `model add` which version it means. Without a controller it says what lacks."""
    monkeypatch.setattr("deploy.controller.default_versions.RECORDED_S", LIMIT_S if keeps else 0.5)
    registry = FakeRegistry()
    registry.add_endpoint("e", "m", version="1")
    store = Following(registry.task())
    if keeps:
        carry_out(registry, registry.task(), default_versions.recorded)
        store.tasks.append(registry.task())
    assert 0 == store.wait()
    assert keeps == ("e" in store.spec().defaults)
    assert keeps == ("triton-gateway default e VERSION" not in capsys.readouterr().err)


def test_a_section_that_nobody_can_read_ends_it_at_once() -> None:
    """Gateways keep their old configuration, so waiting is useless."""
    with pytest.raises(DeployError, match="section endpoints "):
        Following(replace(task_of("a"), sections={"endpoints": "br{ace {"})).wait()

"""``triton-gateway status``: what it prints, and its exit code."""

from __future__ import annotations

import json
from typing import Any

import pytest

from deploy.cli.commands.status import describe
from deploy.cli.main import main
from tests.sites import nobody, site

SERVED: dict[str, Any] = {
    "ready": True, "not_ready_because": [], "faults": [], "pending": [], "canaries": {},
    "endpoints": [{"url": "minilm", "model_id": "m1", "model_name": "MiniLM", "state": "serving"}],
}  # fmt: skip


def test_json_is_what_the_gateway_says_and_all_there_is_on_stdout(capsys: pytest.CaptureFixture[str]) -> None:
    """Programs can read it; the exit code says that all is well."""
    with site(lambda _: (200, SERVED)) as address:
        assert 0 == main(["status", "--json", "--url", address])
    shown = capsys.readouterr()
    assert (SERVED, "") == (json.loads(shown.out), shown.err)


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


def test_without_a_gateway_it_says_how_to_start_one(capsys: pytest.CaptureFixture[str]) -> None:
    """One line, and nothing on stdout."""
    with nobody() as port:
        assert 1 == main(["status", "--json", "--url", f"http://127.0.0.1:{port}"])
    shown = capsys.readouterr()
    assert ("", 1) == (shown.out, len(shown.err.splitlines()))
    assert "triton-gateway up" in shown.err


@pytest.mark.parametrize("url", ["nonsense", "http://[::bad", "ftp://127.0.0.1:1", "another server"])
def test_what_is_no_gateway_is_refused(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    """An address that is none, and one of a server of another kind."""
    with site(lambda _: (404, None)) as address:
        assert 1 == main(["status", "--url", address if url == "another server" else url])
    (line,) = capsys.readouterr().err.splitlines()
    assert "--url" in line


SHARED = "has the same file as others (…)"
ROLLOUT = {"canary": "clf/3", "weight": 5.0, "why": "too few requests", "guard": "host 1a2b", "phase": "running"}


@pytest.mark.parametrize(
    ("status", "lines"),
    [
        ({"defaults": {"faq": "faq/1", "old": "old/1"},
          "endpoints": [{"url": "faq/1", "state": "serving"}, {"url": "old/2", "state": "serving"}]},
         ["default version of faq: faq/1", "default version of old: old/1, which is not served"]),
        ({"faults": [{"subject": f"model {name}", "message": SHARED} for name in "abc"]},
         [f"fault in model a, model b, model c: {SHARED}"]),
        ({"pending": [{"url": f"f/{n}", "state": "loading", "reason": "waits"} for n in range(12)]},
         [f"{', '.join(f'f/{n}' for n in range(10))} and 2 more: loading: waits"]),
        ({"canaries": {"zc": {"clf/3": 1.0, "clf/1": 0.0}, "clf": {"clf/3": 0.1, "clf/1": 0.9}}},
         ["canary zc: finished, clf/3 answers all", 'canary clf: {"clf/3": 0.1, "clf/1": 0.9}']),
        ({"rollouts": [{**ROLLOUT, "endpoint": "clf"}, {**ROLLOUT, "endpoint": "zc", "guard": ""},
                       {**ROLLOUT, "endpoint": "old", "phase": "promoted"}]},
         ["rollout clf: clf/3 has 5 %, running, guarded by host 1a2b: too few requests",
          "rollout zc: clf/3 has 5 %, running, nobody guards it: too few requests"]),
        ({"lost": [{"endpoint": "faq/2", "restore": "clearml-serving …"}]},
         ["lost faq/2: another ClearML client wrote back a copy of the Task that it had read before; if it was not "
          "removed on purpose: clearml-serving …"]),
    ],
    ids=["bare name", "faults of many", "many of a state", "canary", "rollout", "lost"],
)  # fmt: skip
def test_what_a_gateway_tells_is_told_once(status: dict[str, Any], lines: list[str]) -> None:
    """Each in its line; rollouts that have ended are not."""
    found = describe("http://g", {"ready": True, **status})
    kinds = ("default", "fault", "f/0, ", "canary", "rollout", "lost")
    assert lines == [line for line in found if line.startswith(kinds)]

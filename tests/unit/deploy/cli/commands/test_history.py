"""`triton-gateway history`: the changes in the registry."""

# ruff: noqa: D103 - a test's name states its rule

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest

from deploy.cli.main import main
from deploy.controller.history.recorder import look
from tests.fakes import FakeRegistry

A, B = "a" * 32, "b" * 32


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> FakeRegistry:
    found = FakeRegistry()
    monkeypatch.setattr("gateway.registry.ClearMLRegistry", lambda *_args, **_rest: found)
    monkeypatch.setenv("TRITON_GATEWAY_USER", "ann")
    monkeypatch.chdir(tmp_path)
    look(found, clock=lambda: time.time() - 7 * 86400)
    found.add_endpoint("e", A, version="1")
    found.add_endpoint("other", B)
    return found


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (("--endpoint", "e"), ["e/1"]), (("--endpoint", "/e/1"), ["e/1"]), (("--endpoint", "o"), []),
        (("--since", "48h"), ["new"]), (("--since", "672h"), ["e/1", "new", "other"]),
        (("--since", "48h", "--endpoint", "e"), []),
    ],
)  # fmt: skip
def test_what_is_asked_for_is_shown(
    store: FakeRegistry, capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], expected: list[str]
) -> None:
    look(store, clock=lambda: time.time() - 3 * 86400)
    store.add_endpoint("new", A)
    assert 0 == main(["history", "--json", *arguments])
    assert expected == sorted(one["subject"] for one in json.loads(capsys.readouterr().out)["entries"])


def test_lines_say_when_by_whom_and_from_what_to_what(store: FakeRegistry, capsys: pytest.CaptureFixture[str]) -> None:
    look(store)
    store.add_endpoint("e", B, version="1")
    assert 0 == main(["history", "--endpoint", "e"])
    out, err = capsys.readouterr()
    lines = out.splitlines()
    assert "seen  endpoint e/1  by a ClearML client" in lines[0]
    assert [f"      new: engine_type triton, model_id {A}, version 1", f"      model_id: {A} → {B}"] == lines[1::2]
    assert "2 changes; recorded since" in err

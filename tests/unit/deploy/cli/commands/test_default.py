"""``triton-gateway default``: what it shows, what it writes, what it refuses."""

from __future__ import annotations

import pytest

from deploy.cli.commands import default
from deploy.controller.history import recorder
from deploy.tools.errors import DeployError, GatewayError
from gateway.spec import decode
from tests.fakes import FakeRegistry
from tests.unit.deploy.cli.commands.on_store import run


@pytest.fixture
def store() -> FakeRegistry:
    """Two versions of ``faq``, and an endpoint whose name begins like it."""
    registry = FakeRegistry()
    for version in "12":
        registry.add_endpoint("faq", f"m{version}", version=version)
    registry.add_endpoint("faq/extra", "m3", version="2")
    return registry


def test_what_is_chosen_counts_and_is_told(store: FakeRegistry, capsys: pytest.CaptureFixture[str]) -> None:
    """The version is chosen by number or url, and the history names the author."""
    assert 0 == run(default.command, store, "faq")
    recorder.look(store)
    assert 0 == run(default.command, store, "/faq", "2")
    recorder.look(store)
    assert {"faq": "faq/2"} == decode(store.task()).defaults
    assert 0 == run(default.command, store, "faq", "faq/1")
    assert ["faq: nothing yet; faq/1, faq/2 can be chosen", "faq: faq/2", "faq: faq/1"] == (
        capsys.readouterr().out.splitlines()
    )
    told = recorder.read(store).entries
    assert ["faq/2", "faq/1"] == [one.after["version"] for one in told if one.kind == "default"]


def test_a_canary_of_the_name_goes_before_it_and_that_is_said(
    store: FakeRegistry, capsys: pytest.CaptureFixture[str]
) -> None:
    """The chosen version counts when the canary is removed."""
    store.canary["faq"] = {"endpoint": "faq", "weights": [1.0], "load_endpoints": ["faq/1"]}
    assert 0 == run(default.command, store, "faq", "2")
    assert "faq: a canary, faq/1 1\n" == capsys.readouterr().out
    store.canary.clear()
    assert {"faq": "faq/2"} == decode(store.task()).defaults


@pytest.mark.parametrize(
    "arguments", [["faq", "9"], ["nothing"], ["nothing", "1"], ["faq", "extra/2"], ["faq", "faq/extra/2"]]
)
def test_what_is_not_there_is_refused(store: FakeRegistry, arguments: list[str]) -> None:
    """An unknown version is refused, and nothing is written."""
    with pytest.raises((DeployError, GatewayError)) as told:
        run(default.command, store, *arguments)
    assert "faq" in str(told.value) + str(told.value.hint)  # type: ignore[attr-defined]
    assert {} == decode(store.task()).defaults

"""Commands that write one value: ``default``, ``objective``, ``canary shadow``; and ``lineage``, which reads one."""

from __future__ import annotations

from typing import Any

import click
import pytest

from deploy.cli.commands import default, objective
from deploy.cli.commands.lineage import lineage
from deploy.cli.commands.shadow import command as shadow
from deploy.controller.history import recorder
from deploy.tools.errors import DeployError, GatewayError
from gateway.spec import ShadowSpec, decode
from tests.fakes import FakeRegistry
from tests.unit.deploy.cli.commands.on_store import run


@pytest.fixture
def store() -> FakeRegistry:
    """Two versions of ``faq``, an endpoint whose name begins like it, and a plain one."""
    registry = FakeRegistry()
    for version in "12":
        registry.add_endpoint("faq", f"m{version}", version=version)
    registry.add_endpoint("faq/extra", "m3", version="2")
    registry.add_endpoint("plain", "m1")
    return registry


def test_a_default_that_is_chosen_counts_and_is_told(store: FakeRegistry, capsys: pytest.CaptureFixture[str]) -> None:
    """By number or url. A canary of the name goes before it, and that is said; the choice counts when it is removed."""
    for arguments in ((), ("2",), ("faq/1",)):
        assert 0 == run(default.command, store, "/faq", *arguments)
        recorder.look(store)
    store.canary["faq"] = {"endpoint": "faq", "weights": [1.0], "load_endpoints": ["faq/1"]}
    assert 0 == run(default.command, store, "faq", "2")
    assert ["faq: nothing yet; faq/1, faq/2 can be chosen", "faq: faq/2", "faq: faq/1", "faq: a canary, faq/1 1"] == (
        capsys.readouterr().out.splitlines()
    )
    store.canary.clear()
    assert {"faq": "faq/2"} == decode(store.task()).defaults
    told = recorder.read(store).entries
    assert ["faq/2", "faq/1", "faq/2"] == [one.after["version"] for one in told if one.kind == "default"]


def test_an_objective_is_promised_part_by_part(store: FakeRegistry, capsys: pytest.CaptureFixture[str]) -> None:
    """Other targets stay; after a reset the default counts; the history has each change."""
    assert 0 == run(objective.command, store, "plain")
    for arguments in (
        (), ("--latency", "300ms"), ("--availability", "99.5%", "--latency-share", "95%"), ("--latency", "off"),
        ("--reset",),
    ):  # fmt: skip
        assert 0 == run(objective.command, store, "/faq", *arguments)
        recorder.look(store)
    assert [
        "plain: 99.9% answered (the default)",
        "faq: 99.9% answered (the default)",
        "faq: 99.9% answered, 99% of the answers within 300 ms",
        "faq: 99.5% answered, 95% of the answers within 300 ms",
        "faq: 99.5% answered",
        "faq: 99.9% answered (the default)",
    ] == capsys.readouterr().out.splitlines()
    told = [one for one in recorder.read(store).entries if one.kind == "objective"]
    stated = {"availability": "99.5%", "latency": "300ms", "latency_share": "95%"}
    assert [{"latency": "300ms"}, stated, {**stated, "latency": "off"}, {}] == [one.after for one in told]
    assert all(one.by and not one.is_seen for one in told)


def test_a_shadow_is_what_a_gateway_reads(store: FakeRegistry) -> None:
    """It starts and ends shadow traffic; other sections stay unchanged."""
    before = decode(store.task()).revision
    assert 0 == run(shadow, store, "--endpoint", "faq", "--to", "2", "--percent", "5")
    found = decode(store.task())
    assert ({"faq": ShadowSpec("faq", "faq/2", 5.0, 0.1)}, ()) == (found.shadows, found.faults)
    assert 0 == run(shadow, store, "--endpoint", "faq", "--off")
    assert ({}, before) == (decode(store.task()).shadows, decode(store.task()).revision)
    assert before != found.revision


SHADOW = ("--endpoint", "faq", "--to")


@pytest.mark.parametrize(
    ("command", "arguments", "reason"),
    [
        (default.command, ("faq", "9"), "faq/9"),
        (default.command, ("nothing",), "nothing"),
        (default.command, ("faq", "extra/2"), "faq/extra/2 is not a version of faq"),
        (objective.command, ("faq", "--availability", "100%"), "cannot be promised"),
        (objective.command, ("faq", "--latency", "soon"), "not a duration"),
        (objective.command, ("nothing", "--latency", "1s"), "no endpoint nothing"),
        (shadow, (*SHADOW, "9", "--percent", "5"), "there is no endpoint faq/9"),
        (shadow, (*SHADOW, "2", "--percent", "0"), "a share of 0 %"),
        (shadow, (*SHADOW, "2"), "give --to and --percent"),
        (shadow, (*SHADOW, "2", "--percent", "5", "--tolerance", "-1"), "a tolerance must be"),
    ],
)
def test_what_cannot_be_is_refused_and_nothing_is_written(
    store: FakeRegistry, command: click.Command, arguments: tuple[str, ...], reason: str
) -> None:
    """With the reason."""
    before = store.task()
    with pytest.raises((DeployError, GatewayError), match=reason):
        run(command, store, *arguments)
    assert before == store.task()


def test_the_lineage_of_a_name_without_a_version_is_that_of_its_default(
    store: FakeRegistry, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in a request."""
    run(default.command, store, "faq", "2")
    registry: Any = store
    monkeypatch.setattr(registry, "lineage", lambda model_id: {"model": model_id})
    assert {"url": "faq/2", "served_as": ["faq/2"], "model": "m2"} == lineage(registry, "/faq")
    assert ["faq/1", "plain"] == lineage(registry, "faq/1")["served_as"]
    with pytest.raises(DeployError, match="there is no endpoint nothing"):
        lineage(registry, "nothing")

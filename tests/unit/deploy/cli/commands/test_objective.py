"""``triton-gateway objective``: what it shows, what it writes, what it refuses."""

# ruff: noqa: D103 - a test's name states its rule

from __future__ import annotations

import pytest

from deploy.cli.commands import objective
from deploy.controller.history import recorder
from deploy.tools.errors import DeployError, GatewayError
from tests.fakes import FakeRegistry
from tests.unit.deploy.cli.commands.on_store import run


@pytest.fixture
def store() -> FakeRegistry:
    """An endpoint whose options set a latency objective."""
    registry = FakeRegistry()
    registry.add_endpoint("faq", "m1", version="1")
    registry.add_endpoint("plain", "m1")
    return registry


def test_an_objective_is_promised_part_by_part(store: FakeRegistry, capsys: pytest.CaptureFixture[str]) -> None:
    """Other targets stay; after a reset the default counts; the history names the author."""
    for arguments in (
        (), ("--latency", "300ms"), ("--availability", "99.5%", "--latency-share", "95%"), ("--latency", "off"),
        ("--reset",),
    ):  # fmt: skip
        assert 0 == run(objective.command, store, "/faq", *arguments)
        recorder.look(store)
    assert [
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


def test_an_endpoint_that_promises_nothing_itself_says_so(
    store: FakeRegistry, capsys: pytest.CaptureFixture[str]
) -> None:
    assert 0 == run(objective.command, store, "plain")
    assert "plain: 99.9% answered (the default)\n" == capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["faq", "--availability", "100%"], "cannot be promised"), (["faq", "--latency", "soon"], "not a duration"),
        (["nothing", "--latency", "1s"], "no endpoint nothing"),
    ],
)  # fmt: skip
def test_what_cannot_be_promised_is_refused_and_nothing_is_written(
    store: FakeRegistry, arguments: list[str], says: str
) -> None:
    before = store.spec().revision
    with pytest.raises((DeployError, GatewayError), match=says):
        run(objective.command, store, *arguments)
    assert before == store.spec().revision

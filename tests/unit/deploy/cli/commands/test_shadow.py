"""``triton-gateway canary shadow``: what it writes, what it refuses, and how it is shown."""

from __future__ import annotations

import pytest

from deploy.cli.commands.canary import shadow
from deploy.tools.errors import DeployError, GatewayError
from gateway.spec import ShadowSpec, decode
from tests.fakes import FakeRegistry
from tests.unit.deploy.cli.commands.on_store import run


def serving() -> FakeRegistry:
    """A registry whose serving Task has two versions of ``e``."""
    registry = FakeRegistry()
    for version in "12":
        registry.add_endpoint("e", f"m{version}", version=version)
    return registry


def test_what_the_command_writes_a_gateway_reads() -> None:
    """It starts and ends shadow traffic; other sections stay unchanged."""
    store = serving()
    assert 0 == run(shadow, store, "--endpoint", "e", "--to", "2", "--percent", "5")
    assert {"e": ShadowSpec("e", "e/2", 5.0, 0.1)} == decode(store.task()).shadows
    with_shadow = decode(store.task()).revision
    assert 0 == run(shadow, store, "--endpoint", "e", "--off")
    assert {} == decode(store.task()).shadows
    assert with_shadow != decode(store.task()).revision == decode(serving().task()).revision
    assert () == decode(store.task()).faults


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (("--to", "9", "--percent", "5"), "there is no endpoint e/9"),
        (("--to", "2", "--percent", "0"), "a share of 0 %"),
        (("--to", "2", "--percent", "101"), "a share of 101 %"),
        (("--to", "2"), "--to needs --percent"),
        (("--to", "2", "--percent", "5", "--tolerance", "-1"), "a tolerance must be"),
    ],
)
def test_what_a_gateway_could_not_do_is_refused_and_changes_nothing(arguments: tuple[str, ...], reason: str) -> None:
    """The command refuses it with the reason."""
    store = serving()
    before = store.task()
    with pytest.raises((DeployError, GatewayError), match=reason):
        run(shadow, store, "--endpoint", "e", *arguments)
    assert before == store.task()

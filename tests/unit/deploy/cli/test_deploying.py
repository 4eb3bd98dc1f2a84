"""The commands for a model: its version, its tensors, and a request that can be copied."""

from __future__ import annotations

import io
import shlex
from pathlib import Path
from typing import Any

import pytest

from deploy.bundles.model_kinds import Given
from deploy.cli.deploying import Deployment, Wanted, curl, first_answer, name_and_version, next_version, shortened
from deploy.tools.errors import DeployError
from deploy.tools.terminal import Terminal
from gateway.spec import ServingSpec, decode
from tests.fakes import FakeRegistry
from tests.sites import Asked, site


@pytest.fixture
def serving() -> ServingSpec:
    """Return a Task whose endpoint ``faq`` has the versions 2, 10 and one that is no number."""
    registry = FakeRegistry()
    for version in ("2", "10", "beta"):
        registry.add_endpoint("faq", "m", version=version)
    return decode(registry.task())


def test_the_next_version_is_above_the_highest(serving: ServingSpec) -> None:
    """The first one is 1. A given version that exists already is refused."""
    assert ["11", "1", "3"] == [
        next_version(serving, "faq", ""), next_version(serving, "new", ""), next_version(serving, "faq", "3")
    ]  # fmt: skip
    with pytest.raises(DeployError, match="faq/2 exists already"):
        next_version(serving, "faq", "2")


def test_nothing_is_registered_for_a_gateway_that_follows_another_task(tmp_path: Path) -> None:
    """The model would go to one ClearML server, and the gateway of another would never serve it."""
    registry: Any = FakeRegistry()
    with site(lambda _: (200, {"serving_task": {"id": "other", "name": "theirs"}})) as address:
        wanted = Wanted(Given("onnx", "x", "x"), "faq", "", tmp_path, address, "p", "n")
        with pytest.raises(DeployError, match=r"follows another serving Task, theirs \(other\): it would never"):
            Deployment(wanted, registry, Terminal(io.StringIO()), print, {}).run()
    assert {} == registry.models


def test_a_request_can_be_pasted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Quotes in the text and a key in the environment included."""
    monkeypatch.delenv("TRITON_GATEWAY_KEY", raising=False)
    line = curl("http://h:1", "Größe/2", '{"text": "it\'s"}')
    assert "/serve/Gr%C3%B6%C3%9Fe/2 " in line
    assert '{"text": "it\'s"}' == shlex.split(line)[-1]
    monkeypatch.setenv("TRITON_GATEWAY_KEY", "secret")
    assert "secret" not in curl("http://h:1", "faq", "{}")
    assert "$TRITON_GATEWAY_KEY" in curl("http://h:1", "faq", "{}")


@pytest.mark.parametrize(
    "name",
    ["Mein Endpunkt/2", "-x", "a/-1", ".", "..", "a/..", "a?b", "a#b", "a%20b", "a\\b", "tab\t", "a/b/c"],
)
def test_a_name_that_cannot_stand_in_an_address_is_refused(name: str) -> None:
    """Before anything is registered."""
    assert [("faq", "2"), ("Größe", "")] == [name_and_version("/faq/2"), name_and_version("Größe")]
    with pytest.raises(DeployError, match="a name is part of an address"):
        name_and_version(name)


def test_answers_are_short() -> None:
    """Vectors show their first numbers only."""
    assert {"embedding": [0.0, 1.0, 2.0, 3.0, "… 384 numbers"]} == shortened(
        {"embedding": [float(n) for n in range(384)]}
    )
    assert {"scores": [0.1, 0.9]} == shortened({"scores": [0.1, 0.9]})


class Gateway:
    """Answers each request with the next of ``statuses`` and an error's body, and records the paths."""

    def __init__(self, *statuses: int) -> None:
        self.statuses = list(statuses)
        self.paths: list[str] = []

    def __call__(self, asked: Asked) -> tuple[int, Any]:
        self.paths.append(asked.path)
        return self.statuses.pop(0), {"error": "text is missing", "hint": "send a text"}


def test_the_first_request_is_repeated_until_it_is_answered() -> None:
    """A version that another worker does not have yet answers 503; names are escaped as every client escapes them."""
    gateway, shown = Gateway(503, 200), list[str]()
    with site(gateway) as url:
        found = first_answer(url, "Größe/1", {"text": "x"}, shown.append)
    assert 200 == found.status
    assert ["waiting for Größe/1: text is missing"] == shown
    assert ["/serve/Gr%C3%B6%C3%9Fe/1"] * 2 == gateway.paths


def test_a_refusal_that_will_not_change_is_reported_at_once() -> None:
    """The message contains the gateway's own reason."""
    with (
        site(Gateway(422)) as url,
        pytest.raises(DeployError, match="does not answer its example request: text is missing") as refused,
    ):
        first_answer(url, "e/1", {"text": "x"}, str)
    assert "send a text" == refused.value.hint

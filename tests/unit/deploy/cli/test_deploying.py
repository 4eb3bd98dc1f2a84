"""The commands for a model: its version, its tensors, and a request that can be copied."""

from __future__ import annotations

import contextlib
import io
import shlex
from pathlib import Path
from typing import Any

import pytest

from deploy.bundles.model_kinds import Given
from deploy.cli.deploying import Deployment, name_and_version, next_version
from deploy.cli.first_request import answer_of, curl
from deploy.tools.errors import DeployError
from deploy.tools.terminal import Terminal
from tests.fakes import FakeRegistry
from tests.sites import Asked, site


def test_the_next_version_is_above_the_highest() -> None:
    """The first one is 1; what is no number does not count. A given version that exists already is refused."""
    registry = FakeRegistry()
    for version in ("2", "10", "beta"):
        registry.add_endpoint("faq", "m", version=version)
    serving = registry.spec()
    assert ["11", "1", "3"] == [
        next_version(serving, "faq", ""), next_version(serving, "new", ""), next_version(serving, "faq", "3")
    ]  # fmt: skip
    with pytest.raises(DeployError, match="faq/2 exists already"):
        next_version(serving, "faq", "2")


def test_nothing_is_registered_for_a_gateway_that_follows_another_task(tmp_path: Path) -> None:
    """The model would go to one ClearML server, and the gateway of another would never serve it."""
    registry: Any = FakeRegistry()
    with site(lambda _: (200, {"serving_task": {"id": "other", "name": "theirs"}})) as address:
        made = Deployment(
            given=Given("onnx", "x", "x"), endpoint="faq", version="", output=tmp_path, gateway=address, project="p",
            name="n", store=registry, screen=Terminal(io.StringIO()), tell=print, environ={},
        )  # fmt: skip
        with pytest.raises(DeployError, match=r"follows another serving Task, theirs \(other\): it would never"):
            made.run()
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


@pytest.mark.parametrize("statuses", [(503, 200), (422,)], ids=["not there yet", "refused for good"])
def test_the_first_request_is_repeated_until_it_is_answered_or_refused_for_good(statuses: tuple[int, ...]) -> None:
    """A version that another worker does not have yet answers 503. A refusal is reported with the gateway's reason."""
    left, paths, shown = list(statuses), list[str](), list[str]()

    def answer(asked: Asked) -> tuple[int, Any]:
        paths.append(asked.path)
        return left.pop(0), {"error": "text is missing", "hint": "send a text"}

    with site(answer) as url, contextlib.ExitStack() as refused:
        if statuses == (422,):
            refused.enter_context(pytest.raises(DeployError, match="its example request: text is missing"))
        answer_of(url, "Größe/1", {"text": "x"}, shown.append)
    assert ["waiting for Größe/1: text is missing"] * (len(statuses) - 1) == shown
    assert ["/serve/Gr%C3%B6%C3%9Fe/1"] * len(statuses) == paths  # escaped as every client escapes names

"""The wait for an endpoint and its first answer, with the reasons why it is not served yet."""

from __future__ import annotations

from typing import Any

import pytest

from deploy.cli.deploying import first_answer
from deploy.tools.errors import DeployError
from tests.sites import Asked, site


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
        pytest.raises(DeployError, match="refused its example request: text is missing") as refused,
    ):
        first_answer(url, "e/1", {"text": "x"}, str)
    assert "send a text" == refused.value.hint

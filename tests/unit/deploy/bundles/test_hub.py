"""A name that the hub does not give is refused with what to do without a network."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest

from deploy.bundles import hub
from deploy.tools.errors import DeployError


class NotFoundError(Exception):
    """As the client raises it: with the answer."""

    response = SimpleNamespace(status_code=404)


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (
            OSError("Name or service not known\nmore"),
            ("cannot be reached (Name or service not known)", "hf download x/y"),
        ),
        (NotFoundError("404"), ("no model of that name", "HF_TOKEN")),  # private models look the same to a stranger
    ],
)
def test_a_refusal_says_what_to_do(error: Exception, said: tuple[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    """A wrong name is not blamed on the network."""

    def refuse(*_: object, **__: object) -> Path:
        raise error

    client = ModuleType("huggingface_hub")
    client.snapshot_download = refuse  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "huggingface_hub", client)
    with pytest.raises(DeployError) as told:
        hub.fetch("x/y")
    assert all(words in told.value.line() for words in said)

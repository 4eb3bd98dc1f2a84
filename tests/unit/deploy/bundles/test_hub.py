"""A name that the hub does not give is refused at once, with what to do without a network."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from deploy.bundles import hub
from deploy.tools.errors import DeployError


class NotFoundError(Exception):
    """As the client raises it: with the answer."""

    response = SimpleNamespace(status_code=404)


Install = Callable[..., None]


@pytest.fixture
def install(monkeypatch: pytest.MonkeyPatch) -> Install:
    """Put in place a client of the hub whose cache and network give or raise this."""

    def give(outcome: object) -> Any:
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    def put(*, cache: object, network: object) -> None:
        client = ModuleType("huggingface_hub")
        client.snapshot_download = (  # type: ignore[attr-defined]
            lambda _name, local_files_only=False, **_: give(cache if local_files_only else network)
        )
        client.HfApi = lambda: SimpleNamespace(  # type: ignore[attr-defined]
            model_info=lambda _name, timeout: give(network if timeout else None)
        )
        monkeypatch.setitem(sys.modules, "huggingface_hub", client)

    return put


def test_what_is_in_the_cache_needs_no_network(install: Install) -> None:
    """The hub is not asked."""
    install(cache="/cache/m", network=OSError("no network"))
    hub.check("someone/tiny")


def test_what_the_hub_gives_is_fetched_later(install: Install) -> None:
    """Looking at it is enough before something is started."""
    install(cache=OSError("not cached"), network="/cache/m")
    hub.check("someone/tiny")
    assert Path("/cache/m") == hub.fetch("someone/tiny")


@pytest.mark.parametrize("ask", [hub.check, hub.fetch])
def test_without_a_network_the_way_to_a_folder_is_said(install: Install, ask: Callable[[str], object]) -> None:
    """In one line, with the command that makes one elsewhere."""
    install(cache=OSError("not cached"), network=OSError("Name or service not known\nmore\nlines"))
    with pytest.raises(DeployError) as told:
        ask("someone/tiny")
    line = told.value.line()
    assert "no folder someone/tiny here, and the hub cannot be reached (Name or service not known)" in line
    assert "hf download someone/tiny --local-dir" in line


def test_a_wrong_name_is_not_blamed_on_the_network(install: Install) -> None:
    """Private and gated models look the same to a stranger."""
    install(cache=OSError("not cached"), network=NotFoundError("404"))
    with pytest.raises(DeployError, match="no model of that name") as told:
        hub.check("someone/tinny")
    assert "HF_TOKEN" in told.value.hint

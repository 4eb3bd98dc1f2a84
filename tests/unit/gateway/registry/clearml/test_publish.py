"""How the SDK is used to register a bundle."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NoReturn

import pytest
from clearml import Task

from gateway.errors import RegistryUnavailable
from gateway.registry.clearml import publish
from gateway.registry.port import Publication

SETTINGS = (publish._LOOKS_IN_A_THREAD, "_report_subprocess_enabled")


def test_the_sdk_forks_nothing_and_looks_for_no_repository_in_a_thread(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Either was seen to wait for ever. Both settings are the SDK's own: one that it does not have is noticed here."""
    for name in SETTINGS:
        monkeypatch.setattr(Task, name, getattr(Task, name))
    seen: list[Any] = []

    def init(**_: object) -> NoReturn:
        seen.extend(getattr(Task, name) for name in SETTINGS)
        raise ValueError("no server here")

    monkeypatch.setattr(Task, "init", init)
    with pytest.raises(RegistryUnavailable, match="no server here"):
        publish.publish(Publication(tmp_path, "p", "n", "somewhere"))
    assert [False, False] == seen

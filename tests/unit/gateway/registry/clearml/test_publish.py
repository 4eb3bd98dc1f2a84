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


def test_the_sdk_does_not_fork_or_look_for_a_repository_in_a_thread(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Either can hang. Both settings belong to the SDK: this test notices if one disappears."""
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

"""That ClearML hears which serving Task is followed: the registry and the stock CLI on a control plane."""

from __future__ import annotations

from pathlib import Path

import pytest

from gateway.registry.clearml import ClearMLRegistry
from tests.control_planes import control_plane
from tests.stock import Client

pytestmark = pytest.mark.integration

WATCHDOG = "Forced stop (non-responsive)"


def test_the_only_serving_task_is_followed_and_kept(tmp_path: Path) -> None:
    """By the registry of gateway and model sync. Of several none is: tests/unit/gateway/registry."""
    with control_plane(tmp_path / "state") as server, (client := Client(server, tmp_path)).here():
        first = client.create("payments")
        said: list[str] = []
        registry = ClearMLRegistry(say=said.append)
        assert first == registry.followed() == registry.task().id
        assert [f"following 'payments' ({first}), the only serving Task that runs"] == said
        # two hours of silence stop a Task on a real server: the stock `list` then no longer shows it
        registry.call("tasks", "started", {"task": first, "force": True})
        registry.call("tasks", "stopped", {"task": first, "status_reason": WATCHDOG, "status_message": WATCHDOG})
        assert first not in client.stock("list")
        assert first == ClearMLRegistry().followed(), "a gateway that starts now finds it"
        registry.marker()
        assert first in client.stock("list")

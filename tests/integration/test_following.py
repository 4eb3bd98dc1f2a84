"""Which serving Task is followed, and that ClearML hears it: the real SDK and the stock CLI on a control plane."""

from __future__ import annotations

import pytest

from gateway.errors import RegistryRefused
from gateway.registry.clearml import ClearMLRegistry
from tests.stock import Client

pytestmark = pytest.mark.integration

WATCHDOG = "Forced stop (non-responsive)"


def test_one_serving_task_is_followed_and_said_and_of_several_none(client: Client) -> None:
    """By the registry of gateway and model sync, and by every command that takes the serving Task."""
    first = client.create("payments")
    said: list[str] = []
    registry = ClearMLRegistry(say=said.append)
    assert first == registry.followed() == registry.task().id
    assert [f"following 'payments' ({first}), the only serving Task that runs"] == said
    client.task = ""
    status = ("canary", "status", "--endpoint", "e")
    assert f"following 'payments' ({first})" in client.ours(*status, code=None, both=True)

    second = client.create("ads")
    client.task = ""
    assert first == registry.followed(), "who follows one goes on with it"
    with pytest.raises(RegistryRefused) as refusal:
        ClearMLRegistry().marker()
    both = f"'ads' ({second}), 'payments' ({first})"
    assert both in refusal.value.message
    for command in (status, ("lineage", "e"), ("doctor",)):
        said_now = client.ours(*command, code=1, both=True)
        assert both in said_now
        assert "CLEARML_SERVING_TASK_ID" in said_now
        assert "Traceback" not in said_now
    client.task = second
    assert both not in client.ours(*status, code=None, both=True)


def test_a_followed_task_is_opened_again_when_the_watchdog_stopped_it(client: Client) -> None:
    """Two hours of silence stop a Task on a real server: the stock `list` then no longer shows it."""
    task = client.create("silent")
    registry = ClearMLRegistry(task)
    registry.call("tasks", "started", {"task": task, "force": True})
    registry.call("tasks", "stopped", {"task": task, "status_reason": WATCHDOG, "status_message": WATCHDOG})
    assert task not in client.stock("list")
    # A gateway that starts now finds it, with its id and without; both serve it whatever its status.
    assert task == ClearMLRegistry().followed()
    assert task == registry.task().id
    registry.marker()
    assert "in_progress" == registry.task_of(task)["status"]
    assert task in client.stock("list")

    registry.call("tasks", "stopped", {"task": task, "status_message": "stopped by Ann"})
    registry.marker()
    assert "stopped" == registry.task_of(task)["status"], "what a person stopped stays stopped, and is followed"
    with pytest.raises(RegistryRefused, match="no serving service is running"):
        ClearMLRegistry().followed()


def test_an_sdk_that_calls_no_server_is_named_as_the_reason(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    """CLEARML_OFFLINE_MODE may be left over from a training."""
    task = client.create("payments")
    monkeypatch.setenv("CLEARML_OFFLINE_MODE", "1")
    with pytest.raises(RegistryRefused, match="CLEARML_OFFLINE_MODE is set"):
        ClearMLRegistry(task).marker()

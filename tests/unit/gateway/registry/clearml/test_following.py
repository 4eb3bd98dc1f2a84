"""Which serving Task a gateway follows without a setting, and the pings that keep the Task alive."""

from __future__ import annotations

from typing import Any

import pytest

from gateway.errors import RegistryRefused
from gateway.registry.clearml.following import PING_S, RETRY_S, Heartbeat, choose

SILENCED = {"status": "stopped", "status_message": "Forced stop (non-responsive)"}


def service(name: str, status: str = "in_progress", **fields: Any) -> dict[str, Any]:
    """A serving Task as the API lists it."""
    return {"id": f"id-of-{name}", "name": name, "status": status, "status_message": "", **fields}


def test_the_only_serving_task_is_followed() -> None:
    """If it is new, running, or stopped by the watchdog. Archived and manually stopped Tasks do not count."""
    others = [service("old", "stopped"), service("done", "completed"), service("away", system_tags=["archived"])]
    for only in (service("a"), service("a", "created"), service("a", **SILENCED)):
        assert "id-of-a" == choose([*others, only])["id"]


def test_several_serving_tasks_are_refused_with_their_names_and_ids() -> None:
    """In any order: a guess could serve another team's models."""
    found = [service("payments"), service("ads", "created"), service("silent", **SILENCED), service("old", "stopped")]
    for listed in (found, found[::-1]):
        with pytest.raises(RegistryRefused) as refusal:
            choose(listed)
        for name in ("ads", "payments", "silent"):
            assert f"{name!r} (id-of-{name}" in refusal.value.message
        assert "old" not in refusal.value.message
        assert "CLEARML_SERVING_TASK_ID" in refusal.value.hint


def test_without_a_running_task_the_stopped_ones_are_named() -> None:
    """Without any, the message says how to create one."""
    with pytest.raises(RegistryRefused, match=r"no serving service is running; there is 'a' \(id-of-a, completed\)"):
        choose([service("a", "completed")])
    with pytest.raises(RegistryRefused, match="no serving service exists yet") as refusal:
        choose([])
    assert "clearml-serving create" in refusal.value.hint


def test_a_silent_task_is_pinged_and_one_that_others_keep_alive_is_not() -> None:
    """Events, edits and pings of other followers count, so the number of calls does not grow with the followers."""
    now = [0.0]
    heart = Heartbeat(lambda: now[0], chance=lambda: 0.5)
    asked = []
    for second in range(0, 3600, 5):
        now[0] = float(second)
        asked.append(heart.due(service("a", last_update=f"{second // 60}")))
    assert {""} == set(asked)
    silent = service("a", last_update="the end")
    heart.due(silent)
    now[0] += PING_S
    assert "" == heart.due(silent)
    now[0] += PING_S * 0.1
    assert "ping" == heart.due(silent)
    # The ping did not arrive: again, but not at every look.
    assert "" == heart.due(silent)
    now[0] += RETRY_S
    assert "ping" == heart.due(silent)


def test_many_followers_ping_about_once_together() -> None:
    """Two hundred workers that start in one second and poll every five."""
    pings, last = 0, "0"
    now = [0.0]
    hearts = [Heartbeat(lambda: now[0], chance=lambda i=i: i / 200) for i in range(200)]
    for second in range(0, 3600, 5):
        now[0] = float(second)
        for heart in hearts:
            if heart.due(service("a", last_update=last)) == "ping":
                pings, last = pings + 1, str(second)
    assert 3600 / (PING_S * 1.2) - 1 <= pings <= 3600 / PING_S


def test_only_a_task_that_the_watchdog_stopped_is_reopened() -> None:
    """A person's decision stays. A server that refuses is not asked at every poll."""
    now = [0.0]
    heart = Heartbeat(lambda: now[0])
    assert "reopen" == heart.due(service("a", **SILENCED))
    assert "" == heart.due(service("a", **SILENCED))
    now[0] += RETRY_S
    assert "reopen" == heart.due(service("a", **SILENCED))
    assert "" == Heartbeat(lambda: now[0]).due(service("a", "stopped", status_message="stopped by Ann"))

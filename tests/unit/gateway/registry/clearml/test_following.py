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


OTHERS = [service("old", "stopped"), service("done", "completed"), service("away", system_tags=["archived"])]


@pytest.mark.parametrize("only", [service("a"), service("a", "created"), service("a", **SILENCED)])
def test_the_only_serving_task_is_followed(only: dict[str, Any]) -> None:
    """If it is new, running, or stopped by the watchdog. Archived and manually stopped Tasks do not count."""
    assert "id-of-a" == choose([*OTHERS, only])["id"]


@pytest.mark.parametrize(
    ("tasks", "named", "hint"),
    [
        ([service("payments"), service("ads", "created"), service("silent", **SILENCED), *OTHERS],
         "'ads' (id-of-ads), 'payments' (id-of-payments), 'silent' (id-of-silent)", "CLEARML_SERVING_TASK_ID"),
        ([service("a", "completed")], "no serving service is running", "clearml-serving create"),
        ([], "no serving service is running", "clearml-serving create"),
    ],
)  # fmt: skip
def test_without_exactly_one_nothing_is_followed(tasks: list[dict[str, Any]], named: str, hint: str) -> None:
    """A guess could serve another team's models. The candidates are named, in any order, and what to do."""
    for listed in (tasks, tasks[::-1]):
        with pytest.raises(RegistryRefused) as refusal:
            choose(listed)
        assert refusal.value.message.endswith(named)
        assert hint in refusal.value.hint


def test_a_silent_task_is_pinged_and_one_that_others_keep_alive_is_not() -> None:
    """Events, edits and pings of other followers count, so the number of calls does not grow with the followers."""
    now = [0.0]
    heart = Heartbeat(lambda: now[0])
    asked = []
    for second in range(0, 3600, 5):
        now[0] = float(second)
        asked.append(heart.due(service("a", last_update=f"{second // 60}")))
    assert {""} == set(asked)
    silent = service("a", last_update="the end")
    heart.due(silent)
    now[0] += PING_S - 1
    assert "" == heart.due(silent)
    now[0] += 1
    assert "ping" == heart.due(silent)
    # The ping did not arrive: again, but not at every look.
    assert "" == heart.due(silent)
    now[0] += RETRY_S
    assert "ping" == heart.due(silent)


def test_only_a_task_that_the_watchdog_stopped_is_reopened() -> None:
    """A person's decision stays. A server that refuses is not asked at every poll."""
    now = [0.0]
    heart = Heartbeat(lambda: now[0])
    assert "reopen" == heart.due(service("a", **SILENCED))
    assert "" == heart.due(service("a", **SILENCED))
    now[0] += RETRY_S
    assert "reopen" == heart.due(service("a", **SILENCED))
    assert "" == Heartbeat(lambda: now[0]).due(service("a", "stopped", status_message="stopped by Ann"))

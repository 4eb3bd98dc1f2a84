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
        ([service("payments"), service("ads", "created"), *OTHERS],
         "'ads' (id-of-ads), 'payments' (id-of-payments)", "CLEARML_SERVING_TASK_ID"),
        (OTHERS, "no serving service is running", "clearml-serving create"),
    ],
)  # fmt: skip
def test_without_exactly_one_nothing_is_followed(tasks: list[dict[str, Any]], named: str, hint: str) -> None:
    """A guess could serve another team's models. The candidates are named, and what to do."""
    with pytest.raises(RegistryRefused) as refusal:
        choose(tasks)
    assert (True, True) == (refusal.value.message.endswith(named), hint in refusal.value.hint)


NOW = [0.0]


def due(heart: Heartbeat, after: float, task: dict[str, Any]) -> str:
    """What the server must hear of a Task some seconds later."""
    NOW[0] += after
    return heart.due(task)


def test_a_silent_task_is_pinged_and_one_that_others_keep_alive_is_not() -> None:
    """Events, edits and pings of other followers count, so the number of calls does not grow with the followers."""
    heart = Heartbeat(lambda: NOW[0])
    assert {""} == {due(heart, 5.0, service("a", last_update=f"{look // 12}")) for look in range(720)}
    silent = service("a", last_update="the end")
    # A ping that did not arrive is sent again, but not at every look.
    waits = (0, PING_S - 1, 1, 0, RETRY_S)
    assert ["", "", "ping", "", "ping"] == [due(heart, seconds, silent) for seconds in waits]


def test_only_a_task_that_the_watchdog_stopped_is_reopened() -> None:
    """A person's decision stays. A server that refuses is not asked at every poll."""
    heart = Heartbeat(lambda: NOW[0])
    assert ["reopen", "", "reopen"] == [due(heart, after, service("a", **SILENCED)) for after in (0, 0, RETRY_S)]
    assert "" == due(Heartbeat(lambda: NOW[0]), 0, service("a", "stopped", status_message="stopped by Ann"))

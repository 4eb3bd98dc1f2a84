"""Why Triton lacks a model, from the reports of model syncs: who counts, what is final, and what it costs to ask."""

from __future__ import annotations

from typing import Any
from unittest.mock import Mock

import pytest

from gateway.control.reports import Reports
from gateway.registry.ledger import Record
from gateway.registry.reports import RECENT_S, Missing, ModelReport, Phase, record, silent, why_missing
from tests.fakes import FakeLedger
from tests.inline import Inline


def one(phase: Phase, reason: str = "", *, is_final: bool = False) -> ModelReport:
    """What a model sync says of the model ``e_m``."""
    return ModelReport("e/1", "m", "e_m", phase, reason, is_final)


BAD = one("pending", "no such operator", is_final=True)
AWAY = one("pending", "the file store does not answer")
_REFUSED = "model sync refuses the model: no such operator"
_LATER = "model sync cannot load the model yet: "


@pytest.mark.parametrize(
    ("told", "reason", "is_final"),
    [
        ([], "", False), ([one("loaded")], "", False), ([one("pending")], "", False), ([BAD], _REFUSED, True),
        ([BAD, BAD], f"{_REFUSED} (2 of 2 Tritons)", True), ([AWAY], f"{_LATER}{AWAY.reason}", False),
        ([BAD, one("pending")], f"{_LATER}{BAD.reason} (1 of 2 Tritons)", False),
        ([BAD, one("loaded")], f"{_LATER}{BAD.reason} (1 of 2 Tritons)", False),
    ],
)  # fmt: skip
def test_a_model_is_refused_if_every_triton_refuses_it(told: list[ModelReport], reason: str, is_final: bool) -> None:
    """One that has just been started may be able to load it."""
    ledger = FakeLedger()
    ledger.write([record(f"pod-{number}", [model], at=100.0) for number, model in enumerate(told)])
    assert Missing(reason, is_final, 100.0 if told else 0.0) == why_missing(ledger.read(), "e_m", now=150.0)
    assert Missing() == why_missing(ledger.read(), "e_m", now=100.0 + RECENT_S)


def test_what_somebody_made_unreadable_is_left_out() -> None:
    """An editor of ClearML can write anything."""
    broken: list[Any] = [{}, {"at": "x", "models": []}, {"at": 1, "models": 3}, {"at": 1, "models": [{"url": "e"}]}]
    records = {"report": {str(number): value for number, value in enumerate(broken)}}
    assert (Missing(), [*"0123"]) == (why_missing(records, "e_m", now=1.0), silent(records, now=1.0))


async def test_many_that_wait_ask_once_in_fifteen_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    """And a registry that is away is asked again soon."""
    now, ledger = [0.0], FakeLedger()
    ledger.write([record("pod", [AWAY], at=100.0)])
    read = Mock(wraps=ledger.read)
    monkeypatch.setattr(ledger, "read", read)
    reports = Reports(ledger, Inline(), clock=lambda: now[0], wall=lambda: 110.0)
    for _ in range(100):
        assert AWAY.reason in (await reports.why_missing("e_m")).reason
    assert 1 == read.call_count
    ledger.is_up = False
    now[0] = 16.0
    assert AWAY.reason in (await reports.why_missing("e_m")).reason
    now[0] = 18.0
    ledger.is_up = True
    ledger.write([record("pod", [BAD], at=109.0)])
    assert (await reports.why_missing("e_m")).is_final


async def test_endpoints_that_a_stale_write_has_lost_are_told_for_a_day() -> None:
    """They may have been removed on purpose. What somebody made unreadable is left out."""
    ledger, wall = FakeLedger(), [1000.0]
    reports = Reports(ledger, Inline(), clock=lambda: 0.0, wall=lambda: wall[0])
    lost: dict[str, Any] = {"faq/2": {"at": 900.0, "restore": "clearml-serving …"}, "x": {"at": None}, "y": 3}
    ledger.write([Record("leader", "lost", lost), Record("leader", "leader", {"id": "c", "count": 1})])
    assert [{"endpoint": "faq/2", "restore": "clearml-serving …"}] == (await reports.judged())["lost"]
    wall[0] += 86400.0
    assert [] == (await reports.judged())["lost"]

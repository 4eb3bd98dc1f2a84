"""Objectives of endpoints: parsing, display, and which one counts."""

# ruff: noqa: D103 - a test's name states its rule

from __future__ import annotations

import re

import pytest

from gateway import objectives
from gateway.control.compile import compile_spec
from gateway.objectives import Objective
from gateway.registry.ledger import Record
from tests.fakes import FakeRegistry

TEXT = {"availability": "99.95%", "latency": "300ms", "latency_share": "95"}


@pytest.mark.parametrize(
    ("stated", "read"),
    [
        ({}, Objective()),
        (TEXT, Objective(0.9995, 0.3, 0.95)),
        ({"latency": "2s"}, Objective(0.999, 2.0, 0.99)),
        ({"availability": "off", "latency": "off"}, Objective(0.0)),
        ({"availability": "0.99", "latency": "0.25"}, Objective(0.99, 0.25)),
    ],
)
def test_missing_parts_come_from_the_default(stated: dict[str, str], read: Objective) -> None:
    """Shares are percentages; times have a unit, or are seconds."""
    assert read == objectives.read(stated)


@pytest.mark.parametrize(
    ("stated", "says"),
    [
        ({"availability": "100%"}, "availability: '100%' cannot be promised: write a share from 50% up to below 100%"),
        ({"availability": "many"}, "availability: 'many' is not a share; write 99.9% or off"),
        ({"latency": "fast"}, "latency: 'fast' is not a duration; write 5s, 500ms, 2m or 1h"),
        ({"latency_share": "10%"}, "latency_share: '10%' cannot be promised"),
        ({"latency_share": "off"}, "latency_share: a share of 0 is no objective: write latency=off instead"),
        ({"availability": "nan"}, "availability: 'nan' cannot be promised"),
    ],
)
def test_an_invalid_objective_is_refused_with_the_invalid_part(stated: dict[str, str], says: str) -> None:
    with pytest.raises(ValueError, match=re.escape(says)):
        objectives.read(stated)


def test_text_of_an_objective() -> None:
    promised = objectives.in_words(Objective(0.9995, 0.3, 0.95))
    assert "99.95% answered, 95% of the answers within 300 ms" == promised
    assert "90% of the answers within 2 s" == objectives.in_words(Objective(0, 2, 0.9))
    assert "nothing is promised" == objectives.in_words(Objective(0))


def test_a_recorded_objective_rebuilds_nothing_and_is_a_new_revision() -> None:
    """The versions stay, and counting begins. A record of a removed endpoint promises nothing."""
    registry = FakeRegistry()
    registry.add_endpoint("e", "m", version="1")
    registry.add_endpoint("plain", "m")
    before = compile_spec(registry.spec(), default_triton="t")
    for name in ("e", "gone"):
        registry.write({}, [Record("objective", name, {"latency": "50ms", "availability": "99%", "at": 1, "by": "me"})])
    after = compile_spec(registry.spec(), default_triton="t")
    assert {"": Objective(), "e": Objective(0.99, 0.05, 0.99)} == after.objectives
    assert before.revision != after.revision
    assert before.endpoints["e/1"].fingerprint == after.endpoints["e/1"].fingerprint


def test_an_unreadable_objective_is_a_fault_and_the_endpoint_is_served() -> None:
    registry = FakeRegistry()
    registry.add_endpoint("e", "m")
    registry.write({}, [Record("objective", "e", {"availability": "always"})])
    plan = compile_spec(registry.spec(), default_triton="t")
    assert ["e"] == [*plan.endpoints]
    assert [("objective e", True)] == [(f.subject, "is not a share" in f.message) for f in plan.faults]
    assert {"": Objective()} == plan.objectives

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
NONE = {"availability": "off", "latency": "off"}


@pytest.mark.parametrize(
    ("stated", "read", "words"),
    [
        ({}, Objective(), "99.9% answered"),
        (TEXT, Objective(0.9995, 0.3, 0.95), "99.95% answered, 95% of the answers within 300 ms"),
        ({"latency": "2s", "availability": "off"}, Objective(0, 2.0, 0.99), "99% of the answers within 2 s"),
        (NONE, Objective(0.0), "nothing is promised"),
        ({"availability": "0.99", "latency": "0.25"}, Objective(0.99, 0.25),
         "99% answered, 99% of the answers within 250 ms"),
    ],
)  # fmt: skip
def test_missing_parts_come_from_the_default(stated: dict[str, str], read: Objective, words: str) -> None:
    """Shares are percentages; times have a unit, or are seconds."""
    assert (read, words) == (objectives.read(stated), objectives.in_words(read))


@pytest.mark.parametrize(
    ("stated", "says"),
    [
        ({"availability": "100%"}, "availability: '100%' cannot be promised: write a share from 50% up to below 100%"),
        ({"availability": "many"}, "availability: 'many' is not a share; write 99.9% or off"),
        ({"latency": "fast"}, "latency: 'fast' is not a duration"),
        ({"latency_share": "10%"}, "latency_share: '10%' cannot be promised"),
        ({"latency_share": "off"}, "latency_share: a share of 0 is no objective: write latency=off instead"),
        ({"availability": "nan"}, "availability: 'nan' cannot be promised"),
    ],
)
def test_an_invalid_objective_is_refused_with_the_invalid_part(stated: dict[str, str], says: str) -> None:
    with pytest.raises(ValueError, match=re.escape(says)):
        objectives.read(stated)


def test_a_recorded_objective_rebuilds_nothing_and_is_a_new_revision() -> None:
    """The versions stay, and counting begins. A record of a removed endpoint promises nothing; what cannot be read is
    a fault, and the endpoint is served.
    """
    registry = FakeRegistry()
    for name in ("e", "plain"):
        registry.add_endpoint(name, "m")
    before = compile_spec(registry.spec(), default_triton="t")
    for name in ("e", "gone"):
        registry.write({}, [Record("objective", name, {"latency": "50ms", "availability": "99%", "at": 1, "by": "me"})])
    registry.write({}, [Record("objective", "plain", {"availability": "always"})])
    after = compile_spec(registry.spec(), default_triton="t")
    assert {"e": Objective(0.99, 0.05, 0.99)} == after.spec.objectives
    assert before.revision != after.revision
    assert before.endpoints == after.endpoints
    assert [("objective plain", True)] == [(f.subject, "is not a share" in f.message) for f in after.faults]

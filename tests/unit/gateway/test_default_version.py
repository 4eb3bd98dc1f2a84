"""The version that a bare name calls: the first one added, until a person chooses. The same for every reader."""

from __future__ import annotations

from typing import Any

import pytest

from gateway import default_version
from gateway.default_version import Default
from gateway.registry import Record
from gateway.spec import decode
from tests.fakes import FakeRegistry


def first(endpoint: str, url: str) -> Record:
    """Return a record as the controller writes it."""
    return Record(default_version.KIND, *default_version.record("first", endpoint, Default(url, 1.0)))


def chosen(endpoint: str, url: str) -> Record:
    """Return a choice as a person makes it."""
    return Record(default_version.KIND, *default_version.record("chosen", endpoint, Default(url, 5.0, "ann", "why")))


@pytest.fixture
def registry() -> FakeRegistry:
    """Two versions of ``faq``."""
    registry = FakeRegistry()
    for version in "12":
        registry.add_endpoint("faq", f"m{version}", version=version)
    return registry


def defaults(registry: FakeRegistry) -> dict[str, str]:
    """Return the versions that bare names call."""
    return dict(decode(registry.task()).defaults)


def test_a_choice_counts_before_the_first_version(registry: FakeRegistry) -> None:
    """For every reader, in any order of writing; without a record there is none."""
    assert {} == defaults(registry)
    registry.ledger.write([chosen("other", "other/1"), first("faq", "faq/1")])
    assert {"faq": "faq/1"} == defaults(registry)
    before = decode(registry.task()).revision
    registry.ledger.write([chosen("faq", "faq/2")])
    assert {"faq": "faq/2"} == defaults(registry)
    registry.ledger.write([first("faq", "faq/1")])
    assert {"faq": "faq/2"} == defaults(registry)
    assert before != decode(registry.task()).revision


def test_a_removed_default_stays_the_default(registry: FakeRegistry) -> None:
    """Otherwise the other version would suddenly get all traffic."""
    registry.ledger.write([first("faq", "faq/1")])
    del registry.endpoints["faq/1"]
    assert {"faq": "faq/1"} == defaults(registry)


@pytest.mark.parametrize("rule", ["good", "broken"])
def test_a_canary_or_endpoint_of_the_bare_name_overrides_the_default(registry: FakeRegistry, rule: str) -> None:
    """Also with invalid weights or an unloaded model, because it is configured."""
    registry.ledger.write([first("faq", "faq/1"), first("other", "other/1")])
    registry.add_endpoint("other", "m3", version="1")
    registry.add_endpoint("other", "m4")
    registry.canary["faq"] = {
        "endpoint": "faq", "weights": [1.0] if rule == "good" else ["many"], "load_endpoints": ["faq/2"],
    }  # fmt: skip
    assert {} == defaults(registry)


@pytest.mark.parametrize("section", ["metric_logging", "model_monitoring"])
def test_a_fault_of_something_else_with_the_name_leaves_the_default(registry: FakeRegistry, section: str) -> None:
    """Metrics or a rule that cannot be read: the versions are served, so the name is."""
    registry.ledger.write([first("faq", "faq/1")])
    registry.sections[section] = '{"faq": {"metrics": "none", "max_versions": "many"}}'
    assert [True] == [fault.subject.endswith(" faq") for fault in decode(registry.task()).faults]
    assert {"faq": "faq/1"} == defaults(registry)


@pytest.mark.parametrize(
    "value", [{}, {"endpoint": "faq"}, {"record": "first", "endpoint": "faq", "url": "faq/1", "at": "x"}]
)
def test_unreadable_records_are_ignored(registry: FakeRegistry, value: dict[str, Any]) -> None:
    """An editor of ClearML can write anything."""
    registry.ledger.write([Record(default_version.KIND, "faq", value), first("faq", "faq/2")])
    assert {"faq": "faq/2"} == defaults(registry)

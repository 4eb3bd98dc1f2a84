"""The version that a bare name calls: the first one added, until a person chooses. The same for every reader."""

from __future__ import annotations

from typing import Any

import pytest

from gateway import default_version
from gateway.default_version import Default
from gateway.registry import Record
from gateway.spec import decode
from tests.fakes import FakeRegistry


def record(kind: Any, url: str) -> Record:
    """Return a record as the controller (``first``) or a person (``chosen``) writes it."""
    return Record(default_version.KIND, *default_version.record(kind, url.partition("/")[0], Default(url, 1.0, "ann")))


FIRST, CHOSEN = record("first", "faq/1"), record("chosen", "faq/2")
UNREADABLE: list[dict[str, Any]] = [
    {}, {"endpoint": "faq"}, {"record": "first", "endpoint": "faq", "url": "faq/1", "at": "x"},
]  # fmt: skip


@pytest.mark.parametrize(
    ("records", "default"),
    [
        ([], {}), ([FIRST], {"faq": "faq/1"}), ([record("chosen", "other/1"), FIRST], {"faq": "faq/1"}),
        ([FIRST, CHOSEN], {"faq": "faq/2"}), ([CHOSEN, FIRST], {"faq": "faq/2"}),
        # Removed, it stays the default: otherwise the other version would suddenly get all traffic.
        ([record("first", "faq/9")], {"faq": "faq/9"}),
        *(([Record(default_version.KIND, "faq", value), FIRST], {"faq": "faq/1"}) for value in UNREADABLE),
    ],
)  # fmt: skip
def test_a_choice_counts_before_the_first_version(records: list[Record], default: dict[str, str]) -> None:
    """For every reader, in any order of writing; a change is a new revision. What cannot be read is left out."""
    registry = FakeRegistry()
    for version in "12":
        registry.add_endpoint("faq", f"m{version}", version=version)
    before = decode(registry.task())
    registry.ledger.write(records)
    after = decode(registry.task())
    assert default == after.defaults
    assert (before.revision == after.revision) == (default == {})


@pytest.mark.parametrize(
    ("endpoint", "section", "text", "default"),
    [
        ("faq", "canary", '{"faq": {"endpoint": "faq", "weights": [1.0], "load_endpoints": ["faq/2"]}}', {}),
        ("faq", "canary", '{"faq": {"endpoint": "faq", "weights": ["many"], "load_endpoints": ["faq/2"]}}', {}),
        ("other", "canary", "{}", {"faq": "faq/1"}), ("bare", "canary", "{}", {}),
        ("faq", "metric_logging", '{"faq": {"metrics": "none"}}', {"faq": "faq/1"}),
        ("faq", "model_monitoring", '{"faq": {"max_versions": "many"}}', {"faq": "faq/1"}),
    ],
)  # fmt: skip
def test_a_canary_or_endpoint_of_the_bare_name_overrides_the_default(
    endpoint: str, section: str, text: str, default: dict[str, str]
) -> None:
    """Also with invalid weights, because it is configured. Metrics or a rule that cannot be read leave the default."""
    registry = FakeRegistry()
    registry.add_endpoint("faq", "m1", version="" if endpoint == "bare" else "1")
    registry.ledger.write([FIRST])
    registry.sections[section] = text
    assert default == decode(registry.task()).defaults

"""What works at the level of detail that is the default: rules, alerts, autoscalers; panels that do not say why."""

# ruff: noqa: D103 - a test's name states its rule

from __future__ import annotations

import json
import re

import pytest

from dashboards import boards, levels, rules


def test_alerts_and_autoscalers_work_at_any_level() -> None:
    """What needs more is recorded for boards."""
    assert {"endpoint_version:gateway_batch_padding:ratio_rate5m"} == levels.RECORDS
    for rule in rules.every():
        named = set(re.findall(r"[a-zA-Z_:][\w:]*", rule["expr"]))
        assert not named & levels.RECORDS, rule
        assert rule.get("record") in levels.RECORDS or not levels.needs_detail(rule["expr"]), rule


@pytest.mark.parametrize(
    ("expr", "needs"),
    [
        ("rate(gateway_requests_total[5m])", False),
        ("rate(gateway_request_rows_sum[5m])", True),
        ("rate(gateway_batch_rows_sum[5m])", False),
        ("rate(gateway_batch_rows_bucket[5m])", True),
        ('rate(gateway_stage_duration_seconds_sum{stage="queue"}[5m])', False),
        ('rate(gateway_stage_duration_seconds_sum{stage="finish"}[5m])', True),
        ('rate(gateway_stage_duration_seconds_bucket{stage="queue"}[5m])', False),
        ('rate(gateway_stage_duration_seconds_bucket{stage="infer"}[5m])', True),
        ('rate(gateway_stage_duration_seconds_sum{stage=~"queue|infer"}[5m])', False),
        ("rate(gateway_variable_enum_total[5m])", True),
        ('rate(gateway_variable_enum_total{variable="predicted_label"}[5m])', False),
        ("endpoint_version:gateway_batch_padding:ratio_rate5m", True),
    ],
)
def test_an_expression_that_needs_every_detail_is_known(expr: str, needs: bool) -> None:
    assert needs == levels.needs_detail(expr)


def test_panels_that_would_be_empty_say_how_to_fill_them() -> None:
    """In what is imported to Grafana; and most panels need nothing."""
    noted = 0
    for name, text in boards.files().items():
        rows = json.loads(text)["panels"]
        for panel in (panel for row in rows for panel in (row, *row.get("panels", ()))):
            needs = any(levels.needs_detail(target["expr"]) for target in panel.get("targets", []))
            said = panel.get("fieldConfig", {}).get("defaults", {}).get("noValue", "")
            assert needs == (levels.NOTE in said), (name, panel["title"])
            assert needs == (levels.NOTE in panel.get("description", "")), (name, panel["title"])
            noted += needs
    assert 0 < noted < 35

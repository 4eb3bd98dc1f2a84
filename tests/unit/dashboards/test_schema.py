"""The boards against Grafana's own types, as JSON schema: a field it does not know, or knows otherwise, fails here."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft7Validator

FOLDER = Path(__file__).parents[3]
SCHEMA = json.loads((FOLDER / "tests" / "data" / "grafana" / "schema.json").read_text())
FILES = sorted((FOLDER / "dashboards" / "grafana").glob("*.json"))

KNOWN = {
    ("templating", "'auto', 'auto_count', 'auto_min'"): "grafana-foundation-sdk writes an interval's fields everywhere",
    ("annotations", "'expr', 'titleFormat'"): "of the Prometheus data source, which this type leaves open elsewhere",
    ("table", "'footer'"): "grafana-foundation-sdk writes what newer tables have in their fields",
}
"""Differences that are not ours, and why."""


def faults(board: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """Every difference as (part, message)."""
    for error in Draft7Validator(SCHEMA["dashboard"]).iter_errors(board):
        yield str(next(iter(error.absolute_path), "board")), error.message
    for panel in board.get("panels", ()):
        for part, value in (
            ("options", panel.get("options", {})),
            ("custom", panel.get("fieldConfig", {}).get("defaults", {}).get("custom", {})),
        ):
            schema = SCHEMA.get(f"{panel['type']}.{part}") if "type" in panel else None
            if schema is not None:
                for error in Draft7Validator(schema).iter_errors(value):
                    yield panel["type"], f"{panel.get('title')}: {list(error.absolute_path)} {error.message}"


def is_known(part: str, message: str) -> tuple[str, str] | None:
    """Which known difference this is."""
    return next((key for key in KNOWN if key[0] == part and f"({key[1]} w" in message), None)


@pytest.mark.parametrize("path", FILES, ids=lambda p: p.stem)
def test_board_is_what_grafana_says_a_board_is(path: Path) -> None:
    """The dashboard, and the options and field options of every panel's type."""
    assert [] == [fault for fault in faults(json.loads(path.read_text())) if is_known(*fault) is None]

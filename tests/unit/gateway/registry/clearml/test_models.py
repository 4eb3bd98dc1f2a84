"""The models that auto-update rules find in the registry."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gateway.registry.clearml.models import find
from gateway.registry.port import ModelQuery


def test_the_newest_models_are_found_over_all_pages() -> None:
    """An unfinished model takes no slot of `--max-versions`: the one before it stays the newest."""
    uris = ["", "http://f/uploading_file", *(f"http://f/{i}" for i in range(1203))]
    rows = [{"id": f"m{i}", "uri": uri, "created": f"{9999 - i}"} for i, uri in enumerate(uris)]

    def page(_service: str, _action: str, body: Mapping[str, Any]) -> dict[str, Any]:
        start = body["page"] * body["page_size"]
        return {"models": rows[start : start + body["page_size"]]}

    assert [f"m{i}" for i in range(2, 1205)] == find(page, ModelQuery())
    assert ["m2", "m3"] == find(page, ModelQuery(most=2))

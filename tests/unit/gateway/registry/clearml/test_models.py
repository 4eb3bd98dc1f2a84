"""The models that auto-update rules find in the registry."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from gateway.registry.clearml.models import find
from gateway.registry.port import ModelQuery


class Api:
    """A registry of models, the newest first."""

    def __init__(self, **models: str) -> None:
        self.rows = [
            {"id": name, "uri": uri, "created": f"{len(models) - i:06}"} for i, (name, uri) in enumerate(models.items())
        ]

    def __call__(self, service: str, action: str, body: Mapping[str, Any]) -> dict[str, Any]:
        """Return a page of models."""
        assert ("models", "get_all") == (service, action)
        start = body["page"] * body["page_size"]
        return {"models": self.rows[start : start + body["page_size"]]}


@pytest.mark.parametrize("uri", ["", "http://f/uploading_file"])
def test_an_unfinished_model_takes_no_slot(uri: str) -> None:
    """It was published last under `--max-versions 1`; the one before it stays the newest."""
    api = Api(unfinished=uri, good="http://f/good.onnx", old="http://f/old.onnx")
    assert ["good"] == find(api, ModelQuery(most=1))
    assert ["good", "old"] == find(api, ModelQuery(most=2))


def test_all_pages_are_read() -> None:
    """Without a limit."""
    assert [f"m{i}" for i in range(1203)] == find(Api(**{f"m{i}": f"http://f/{i}" for i in range(1203)}), ModelQuery())

"""The models that auto-update rules find in the registry."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from gateway.registry.clearml.models import ModelSearch
from gateway.registry.port import ModelQuery


class Api:
    """A registry of models, the newest first, with the sizes of their files."""

    def __init__(self, *models: tuple[str, str, int | None]) -> None:
        self.rows = [
            {"id": name, "uri": uri, "created": f"{len(models) - i:06}"} for i, (name, uri, _) in enumerate(models)
        ]
        self.sizes = {uri: size for _, uri, size in models}
        self.asked: list[str] = []

    def call(self, service: str, action: str, body: Mapping[str, Any]) -> dict[str, Any]:
        """Return a page of models."""
        assert ("models", "get_all") == (service, action)
        rows = [row for row in self.rows if row["id"] in body.get("id", [row["id"]])]
        start = body["page"] * body["page_size"]
        return {"models": rows[start : start + body["page_size"]]}

    def size(self, uri: str) -> int | None:
        """Return the size of a file."""
        self.asked.append(uri)
        return self.sizes[uri]


@pytest.mark.parametrize(
    ("uri", "size"),
    [("", 10), ("http://f/uploading_file", 10), ("http://f/gone.onnx", 0), ("http://f/folder.zip", 22)],
    ids=["no address", "unfinished", "no bytes", "an empty folder"],
)
def test_an_empty_model_takes_no_slot(uri: str, size: int) -> None:
    """It was published last under `--max-versions 1`; the one before it stays the newest."""
    api = Api(("empty", uri, size), ("good", "http://f/good.onnx", 10), ("old", "http://f/old.onnx", 10))
    store = ModelSearch(api.call, api.size)
    assert ["good"] == store.find(ModelQuery(most=1))
    assert ["good", "old"] == store.find(ModelQuery(most=2))


def test_a_model_of_unknown_size_counts_and_sizes_are_read_once() -> None:
    """Other stores, or a failed file server. Each new model costs one small call."""
    api = Api(("s3", "s3://b/m.onnx", None), ("tiny", "http://f/rules.json", 22), ("old", "http://f/old", 1))
    store = ModelSearch(api.call, api.size)
    for _ in range(3):
        assert ["s3", "tiny"] == store.find(ModelQuery(most=2))
    assert ["s3://b/m.onnx", "http://f/rules.json"] == api.asked


def test_a_served_model_stays_the_newest_when_its_file_is_gone() -> None:
    """It is loaded and cached, so no older model replaces it."""
    api = Api(("served", "http://f/served.onnx", 0), ("old", "http://f/old.onnx", 10))
    assert ["served"] == ModelSearch(api.call, api.size).find(ModelQuery(most=1, served=("served",)))
    assert [] == api.asked


def test_without_a_limit_no_size_is_read_and_all_pages_are() -> None:
    """An empty model takes no other's place then."""
    api = Api(*((f"m{i}", f"http://f/{i}", 0) for i in range(1203)))
    assert [f"m{i}" for i in range(1203)] == ModelSearch(api.call, api.size).find(ModelQuery())
    assert [] == api.asked

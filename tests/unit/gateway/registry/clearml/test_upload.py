"""What is registered when files do not arrive, and where they go."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from clearml import StorageManager

from gateway.errors import RegistryUnavailable
from gateway.registry.clearml import upload
from gateway.registry.port import Upload

TASK = {"id": "t", "output": {"destination": "s3://of-the-task/"}}


class Api:
    """A server that has nothing, and notes what it is asked."""

    def __init__(self) -> None:
        self.session = SimpleNamespace(get_files_server_host=lambda: "http://files")
        self.asked: list[str] = []

    def call(self, service: str, action: str, body: Mapping[str, Any]) -> dict[str, Any]:
        """Answer."""
        self.asked.append(f"{service}.{action}")
        return {"models": [], "projects": [], "id": "new"}


@pytest.mark.parametrize(
    ("serving", "chosen", "where"),
    [(TASK, "s3://chosen", "s3://of-the-task"), ({"id": "t"}, "s3://chosen", "s3://chosen"),
     ({"id": "t"}, "", "http://files")],
)  # fmt: skip
def test_what_does_not_arrive_is_no_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, serving: Any, chosen: str, where: str
) -> None:
    """It is said where it should have gone, and what to look at."""
    (tmp_path / "folder").mkdir()
    sent = []

    def fail(_path: str, place: str) -> None:
        sent.append(place)
        raise ValueError("the disk is full")

    monkeypatch.setattr(StorageManager, "upload_file", fail)
    monkeypatch.setenv("CLEARML_DEFAULT_OUTPUT_URI", chosen)
    api: Any = Api()
    wanted = Upload(tmp_path / "folder", "a/b", "name", "ONNX", scratch=tmp_path)
    with pytest.raises(RegistryUnavailable, match=f"name cannot be uploaded to {where}: the disk is full") as error:
        upload.register(wanted, serving, api)
    assert "room" in error.value.hint
    assert [f"{where}/a/b/models/"] == [place[: place.index("name-")] for place in sent]
    assert ["models.get_all"] == api.asked

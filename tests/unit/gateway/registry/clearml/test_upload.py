"""What is registered when files do not arrive, and where they go."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
from clearml import StorageManager

from gateway.errors import RegistryUnavailable
from gateway.registry.clearml import upload
from gateway.registry.port import Upload

TASK = {"id": "t", "output": {"destination": "s3://of-the-task/"}}


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
    api = Mock(**{"call.return_value": {"models": []}, "session.get_files_server_host.return_value": "http://files"})
    wanted = Upload(tmp_path / "folder", "a/b", "name", "ONNX", scratch=tmp_path)
    with pytest.raises(RegistryUnavailable, match=f"name cannot be uploaded to {where}: the disk is full") as error:
        upload.register(wanted, serving, api)
    assert "room" in error.value.hint
    assert [f"{where}/a/b/models/"] == [place[: place.index("name-")] for place in sent]
    assert [("models", "get_all")] == [call.args[:2] for call in api.call.call_args_list]

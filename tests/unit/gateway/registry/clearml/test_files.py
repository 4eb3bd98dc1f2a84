"""Files of clouds, which the SDK fetches, and of stores that nobody can read; the progress of slow downloads."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast
from unittest.mock import Mock

import pytest
from clearml.storage.helper import StorageHelper

from gateway.errors import RegistryRefused, RegistryUnavailable
from gateway.registry.clearml import files
from gateway.registry.clearml.files import Files
from gateway.registry.port import Parts
from tests.waiting import until

ADDRESS = "s3://models/bundles/model.zip"


@pytest.fixture
def store() -> Files:
    """Files that need no session: of clouds and of this disk."""
    return Files(cast("Any", None), {"old://": "s3://"})


def test_a_file_in_a_cloud_is_fetched_whole_by_the_sdk(
    store: Files, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From the address that it has here, under its own name, not in parts. Where that fails, people are told where the
    reason is, which keys are used, and which library.
    """
    helper = Mock()
    helper.download_to_file.side_effect = lambda _address, path, **_: Path(path).write_bytes(b"zip")
    get = Mock(return_value=helper)
    monkeypatch.setattr(StorageHelper, "get", get)
    found = store.download("old://models/bundles/model.zip", tmp_path)
    assert (tmp_path / "model.zip", b"zip") == (found, found.read_bytes())
    get.assert_called_once_with(ADDRESS)
    assert store.parts(ADDRESS) is None
    refusing, failing = (
        Mock(**{"download_to_file.return_value": None}),
        Mock(**{"download_to_file.side_effect": OSError}),
    )
    for answer in (None, refusing, failing):
        get.return_value = answer
        with pytest.raises(RegistryUnavailable, match=ADDRESS) as failure:
            store.download(ADDRESS, tmp_path)
        assert all(part in failure.value.hint for part in ("log", "clearml.conf", "EXTRAS=s3"))


def test_an_address_of_an_unknown_store_is_refused_with_the_known_ones(store: Files, tmp_path: Path) -> None:
    """It is not retried."""
    for ask in (lambda: store.download("ftp://models/one.zip", tmp_path), lambda: store.parts("ftp://models/one.zip")):
        with pytest.raises(RegistryRefused) as refused:
            ask()
        assert "s3, gs or azure" in refused.value.hint


def test_a_slow_download_tells_how_far_it_is(
    store: Files, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """In the log, again and again; and how long it took."""
    told = threading.Event()

    def read(_start: int, _count: int) -> Iterator[bytes]:
        yield bytes(3_000_000)
        until(lambda: any("of 4 MB" in line for line in caplog.messages))
        told.set()
        yield bytes(1_000_000)

    monkeypatch.setattr(files, "_QUIET_S", 0.001)
    monkeypatch.setattr(files, "on_disk", lambda _: Parts(4_000_000, read))
    with caplog.at_level(logging.INFO, "triton_gateway.registry"):
        store.download("file:///models/one.zip", tmp_path)
    assert told.is_set()
    assert caplog.messages[0].startswith("downloading one.zip: ")
    assert "downloaded one.zip: 4 MB in " in caplog.messages[-1]

"""Files of clouds, which the SDK fetches, and of stores that nobody can read; the progress of slow downloads."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pytest
from clearml.storage.helper import StorageHelper

from gateway.errors import RegistryRefused, RegistryUnavailable
from gateway.registry.clearml import files
from gateway.registry.clearml.files import Files
from gateway.registry.port import Parts
from tests.waiting import until

ADDRESS = "s3://models/bundles/model.zip"


class Helper:
    """The SDK's: it logs why it failed and returns nothing, or raises, or writes a file."""

    def __init__(self, found: bytes | Exception | None) -> None:
        self._found = found

    def download_to_file(self, _address: str, path: str, **_: Any) -> str | None:
        """See the SDK."""
        if isinstance(self._found, Exception):
            raise self._found
        if self._found is None:
            return None
        Path(path).write_bytes(self._found)
        return path


@pytest.fixture
def store() -> Files:
    """Files that need no session: of clouds and of this disk."""
    return Files(cast("Any", None), {"old://": "s3://"})


@pytest.mark.parametrize("found", [None, Helper(None), Helper(RuntimeError("no such key"))])
def test_a_cloud_that_gives_nothing_is_asked_again(
    store: Files, found: Helper | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The SDK's log has the reason; people are told where, which keys are used, and which library."""
    monkeypatch.setattr(StorageHelper, "get", lambda _: found)
    with pytest.raises(RegistryUnavailable, match=ADDRESS) as failure:
        store.download(ADDRESS, tmp_path)
    assert all(part in failure.value.hint for part in ("log", "clearml.conf", "EXTRAS=s3"))


def test_a_file_in_a_cloud_is_fetched_whole_by_the_sdk(
    store: Files, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From the address that it has here, under its own name; it cannot be read in parts."""
    asked: list[str] = []
    monkeypatch.setattr(StorageHelper, "get", lambda address: asked.append(address) or Helper(b"zip"))
    found = store.download("old://models/bundles/model.zip", tmp_path)
    assert ([ADDRESS], tmp_path / "model.zip", b"zip") == (asked, found, found.read_bytes())
    assert store.parts(ADDRESS) is None


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

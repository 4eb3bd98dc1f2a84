"""Rules of file addresses and their versions."""

# ruff: noqa: D103 - a test's name states its rule

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deploy.controlplane import uris

SEGMENTS = st.text(st.characters(codec="utf-8", exclude_categories=["Cc", "Cs"], exclude_characters="/\\"), min_size=1)
PATHS = st.lists(SEGMENTS.filter(lambda part: part not in (".", "..", ".v")), min_size=1, max_size=4).map("/".join)


@given(path=PATHS, version=st.none() | st.just("0123456789ab"))
def test_address_written_out_parses_back(path: str, version: str | None) -> None:
    address = uris.Address(prefix="http://host:8008/files", path=path, version=version)
    assert uris.parse(str(address)) == address


@given(path=PATHS)
def test_versioned_address_keeps_the_base_name(path: str) -> None:
    """Clients derive the framework, the extension and the cache name from it."""
    plain = str(uris.Address(prefix="http://h/files", path=path))
    versioned = str(uris.Address(prefix="http://h/files", path=path, version="0123456789ab"))
    assert versioned.rpartition("/")[2] == plain.rpartition("/")[2]
    assert uris.unversioned(versioned) == plain


def test_raw_hash_and_question_mark_belong_to_the_path() -> None:
    """The SDK registers such names without quoting them."""
    address = uris.parse("http://h:1/files/P/%D0%BC 1#a?.onnx")
    assert address is not None
    assert address.path == "P/м 1#a?.onnx"
    assert str(address) == "http://h:1/files/P/%D0%BC%201%23a%3F.onnx"


@pytest.mark.parametrize(
    "uri", ["s3://bucket/files/x", "file:///files/x", "/files/x", "http://h/other/x", "http://h/files/", ""]
)
def test_other_addresses_are_not_ours(uri: str) -> None:
    assert uris.parse(uri) is None


def test_first_files_segment_is_the_mount_point() -> None:
    address = uris.parse("https://proxy/clearml/files/files/x.bin")
    assert address == uris.Address(prefix="https://proxy/clearml/files", path="files/x.bin")


@pytest.mark.parametrize("path", ["", "/", "..", "a/../b", "./a", "a/./b", "a\0b", ".v/0123456789ab/x", "a\\..\\b"])
def test_paths_that_leave_the_store_are_refused(path: str) -> None:
    with pytest.raises(uris.BadPath):
        uris.normalised(path)


def test_slashes_are_normalised() -> None:
    assert uris.normalised("//a//b/c ") == "a/b/c "


@pytest.mark.parametrize("uri", ["http://h/files/uploading_file", "http://h/failed_uploading", "uploading_file"])
def test_placeholders_have_no_data(uri: str) -> None:
    assert uris.has_no_data(uri)


@pytest.mark.parametrize("uri", ["http://h/files/my_uploading_file", "http://h/files/uploading_file.onnx", ""])
def test_similar_names_have_data(uri: str) -> None:
    assert not uris.has_no_data(uri)

"""Frames and handed-over memory: what goes in comes out, and what is neither is refused at once."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.hooks.values import decode, encode, total
from gateway.hooks.wire import FrameReader, from_memory, pack, to_memory

FRAMES = st.lists(
    st.tuples(st.dictionaries(st.text(max_size=5), st.integers(-9, 9), max_size=3), st.binary()), max_size=5
)


@given(FRAMES, st.integers(1, 40))
def test_frames_come_out_as_they_went_in_however_they_arrive(
    frames: list[tuple[dict[str, int], bytes]], step: int
) -> None:
    """The stream may be cut anywhere."""
    stream = b"".join(pack(head, payload) for head, payload in frames)
    reader = FrameReader()
    found = [f for i in range(0, len(stream), step) for f in reader.feed(stream[i : i + step])]
    assert frames == found


@pytest.mark.parametrize("lengths", [b"\xff" * 8, b"\0\0\0\0\xff\xff\xff\x7f", b"\xff\xff\xff\x7f\0\0\0\0"])
def test_what_is_no_frame_is_noticed_at_once(lengths: bytes) -> None:
    """Rather than waiting for gigabytes."""
    with pytest.raises(ValueError, match="frame"):
        list(FrameReader().feed(lengths + b"\0" * 8))


@pytest.mark.parametrize("head", [b"[]", b"1", b"null", b"{", b"\xff", b"[" * 2000])
def test_a_head_that_is_no_object_is_no_frame(head: bytes) -> None:
    """Nobody has to ask what it is."""
    with pytest.raises(ValueError):
        list(FrameReader().feed(len(head).to_bytes(4, "little") + b"\0\0\0\0" + head))


def test_large_values_go_through_memory_that_nobody_can_change() -> None:
    """Without a copy on the reader's side; arrays are writable there, and stand well."""
    value = {"a": np.arange(100_003, dtype="float64"), "b": [np.arange(7, dtype="uint8"), np.asfortranarray(np.eye(5))]}
    pieces = encode(value)
    descriptor = to_memory(pieces)
    with pytest.raises(OSError, match="not permitted"):
        os.ftruncate(descriptor, 8)
    found = decode(from_memory(descriptor, total(pieces)))
    assert np.array_equal(value["a"], found["a"])
    assert found["a"].flags.aligned
    found["a"][0] = 1.0
    assert np.array_equal(value["b"][0], found["b"][0])
    assert np.array_equal(value["b"][1], found["b"][1])


def test_memory_that_its_writer_could_shorten_is_not_read(tmp_path: Path) -> None:
    """Reading it would end the gateway with SIGBUS; a pipe would hold it up."""
    (tmp_path / "f").write_bytes(b"x" * 100)
    unsealed = os.memfd_create("x")
    os.write(unsealed, b"x" * 100)
    for descriptor in (unsealed, os.open(tmp_path / "f", os.O_RDONLY), os.pipe()[0], to_memory([b"x" * 99])):
        with pytest.raises(ValueError, match="sealed memory"):
            from_memory(descriptor, 100)
        with pytest.raises(OSError, match="Bad file descriptor"):
            os.fstat(descriptor)


@pytest.mark.parametrize("size", ["100", None, -1, 1 << 40, True, [100]])
def test_memory_of_a_size_that_is_none_is_not_read(size: object) -> None:
    """The size comes from the process."""
    with pytest.raises(ValueError, match="sealed memory"):
        from_memory(to_memory([b"x" * 100]), size)

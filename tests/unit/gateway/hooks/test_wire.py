"""Frames and shared memory: reading returns what was written, and refuses everything else at once."""

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
def test_frames_are_read_from_any_pieces_of_the_stream(frames: list[tuple[dict[str, int], bytes]], step: int) -> None:
    """The stream may be cut anywhere."""
    stream = b"".join(pack(head, payload) for head, payload in frames)
    reader = FrameReader()
    found = [f for i in range(0, len(stream), step) for f in reader.feed(stream[i : i + step])]
    assert frames == found


@pytest.mark.parametrize("lengths", [b"\xff" * 8, b"\0\0\0\0\xff\xff\xff\x7f", b"\xff\xff\xff\x7f\0\0\0\0"])
def test_invalid_frame_lengths_are_refused_at_once(lengths: bytes) -> None:
    """The reader does not wait for gigabytes."""
    with pytest.raises(ValueError, match="frame"):
        list(FrameReader().feed(lengths + b"\0" * 8))


@pytest.mark.parametrize("head", [b"[]", b"1", b"null", b"{", b"\xff", b"[" * 2000])
def test_a_frame_whose_head_is_not_an_object_is_refused(head: bytes) -> None:
    """Callers can rely on its type."""
    with pytest.raises(ValueError):
        list(FrameReader().feed(len(head).to_bytes(4, "little") + b"\0\0\0\0" + head))


def test_large_values_go_through_sealed_memory() -> None:
    """The reader makes no copy. Its arrays are writable and aligned."""
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
    """Reading it could end the gateway with SIGBUS. Reading a pipe would block it."""
    (tmp_path / "f").write_bytes(b"x" * 100)
    unsealed = os.memfd_create("x")
    os.write(unsealed, b"x" * 100)
    for descriptor in (unsealed, os.open(tmp_path / "f", os.O_RDONLY), os.pipe()[0], to_memory([b"x" * 99])):
        with pytest.raises(ValueError, match="sealed memory"):
            from_memory(descriptor, 100)
        with pytest.raises(OSError, match="Bad file descriptor"):
            os.fstat(descriptor)


@pytest.mark.parametrize("size", ["100", None, -1, 1 << 40, True, [100]])
def test_memory_of_an_invalid_size_is_not_read(size: object) -> None:
    """The process sends the size."""
    with pytest.raises(ValueError, match="sealed memory"):
        from_memory(to_memory([b"x" * 100]), size)

"""Frames and plain values: what goes in comes out, and nothing of a hook process is ever run by its gateway."""

from __future__ import annotations

import os
import pickle
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.hooks.wire import FrameReader, dump, dump_plain, from_memory, load_plain, pack, to_memory, total

FRAMES = st.lists(
    st.tuples(st.dictionaries(st.text(max_size=5), st.integers(-9, 9), max_size=3), st.binary()), max_size=5
)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text() | st.binary(),
    lambda inner: st.lists(inner, max_size=3) | st.tuples(inner, inner) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
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


def test_what_is_no_frame_is_noticed_at_once() -> None:
    """Rather than waiting for gigabytes."""
    with pytest.raises(ValueError, match="frame"):
        list(FrameReader().feed(b"\xff" * 16))


@given(VALUES)
def test_plain_values_come_out_equal(value: object) -> None:
    """Containers and scalars."""
    assert value == load_plain(b"".join(dump_plain(value)))


@pytest.mark.parametrize("dtype", ["float32", "float16", "int64", "uint8", "bool", "S3", "U4", "complex64"])
def test_arrays_come_out_equal(dtype: str) -> None:
    """Values, shape and type; not contiguous ones, scalars and empty ones too."""
    array = np.arange(12).reshape(3, 4).astype(dtype)
    for one in (array, array[:, ::2], array[0, 0], array[:0]):
        found = np.asarray(load_plain(b"".join(dump_plain(one))))
        assert (found.dtype, found.shape) == (np.asarray(one).dtype, np.asarray(one).shape)
        assert np.array_equal(found, one)


class Loud:
    """Runs a command when it is unpickled."""

    def __reduce__(self) -> object:
        return os.system, ("echo owned",)


def test_a_pickle_of_anything_else_is_not_read() -> None:
    """User code may write to its socket what it likes."""
    for value in (Loud(), np.array([Loud()], dtype=object), os.system):
        with pytest.raises(pickle.UnpicklingError, match="no plain value"):
            load_plain(b"".join(dump(value)))
    for payload in (b"", b"\xff" * 64, pickle.dumps(Loud()), b"".join(dump(1))[:-1]):
        with pytest.raises(pickle.UnpicklingError):
            load_plain(payload)
    with pytest.raises(TypeError, match="Loud"):
        dump_plain([Loud()])


def test_large_values_go_through_memory_that_nobody_can_change() -> None:
    """Without a copy on the reader's side; arrays are writable there, and stand well."""
    value = {"a": np.arange(100_003, dtype="float64"), "b": [np.arange(7, dtype="uint8"), np.asfortranarray(np.eye(5))]}
    pieces = dump_plain(value)
    descriptor = to_memory(pieces)
    with pytest.raises(OSError, match="not permitted"):
        os.ftruncate(descriptor, 8)
    found = load_plain(from_memory(descriptor, total(pieces)))
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

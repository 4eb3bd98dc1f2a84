"""Frames and plain values: what goes in comes out, and nothing of a hook process is ever run by its gateway."""

from __future__ import annotations

import os
import pickle

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from preprocessing.hook_wire import FrameReader, dump_plain, load_plain, pack

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
    assert value == load_plain(dump_plain(value))


@pytest.mark.parametrize("dtype", ["float32", "float16", "int64", "uint8", "bool", "S3", "U4", "complex64"])
def test_arrays_come_out_equal(dtype: str) -> None:
    """Values, shape and type; not contiguous ones, scalars and empty ones too."""
    array = np.arange(12).reshape(3, 4).astype(dtype)
    for one in (array, array[:, ::2], array[0, 0], array[:0]):
        found = np.asarray(load_plain(dump_plain(one)))
        assert (found.dtype, found.shape) == (np.asarray(one).dtype, np.asarray(one).shape)
        assert np.array_equal(found, one)


class Loud:
    """Runs a command when it is unpickled."""

    def __reduce__(self) -> object:
        return os.system, ("echo owned",)


def test_a_pickle_of_anything_else_is_not_read() -> None:
    """User code may write to its socket what it likes."""
    for payload in (pickle.dumps(Loud()), pickle.dumps(np.array([Loud()], dtype=object)), pickle.dumps(os.system)):
        with pytest.raises(pickle.UnpicklingError, match="no plain value"):
            load_plain(payload)
    with pytest.raises(TypeError, match="Loud"):
        dump_plain([Loud()])

"""Frames: reading returns what was written, and refuses everything else at once."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.hooks.wire import FrameReader, pack

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

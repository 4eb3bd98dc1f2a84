"""Compressed bodies: the cost of unpacking, and the thread that does it."""

from __future__ import annotations

import gzip
import random
import threading
import zlib
from typing import Any

import pytest

from gateway.errors import MalformedBody, PayloadTooLarge
from gateway.http import body

LIMIT = 16 << 20


class Counted:
    """A decompressor that counts its input."""

    fed = 0

    def __init__(self, inner: Any) -> None:
        self._inner = inner

    def decompress(self, data: Any, max_length: int = 0) -> bytes:
        """As zlib's."""
        Counted.fed += len(data)
        return bytes(self._inner.decompress(data, max_length))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


def test_unpacking_many_gzip_members_takes_linear_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Thousands of tiny members used to take quadratic time."""
    make = zlib.decompressobj
    monkeypatch.setattr(zlib, "decompressobj", lambda bits: Counted(make(bits)))
    costs = []
    for members in (2_000, 8_000):
        Counted.fed = 0
        packed = gzip.compress(b" ") * members
        assert b" " * members == body.unpack(packed, b"gzip", limit=LIMIT)
        costs.append(Counted.fed / len(packed))
    assert costs[1] < 1.5 * costs[0], "bytes looked at for each byte that came"


def test_members_of_any_size_are_unpacked() -> None:
    """In pieces of any size. A truncated member is refused."""
    draw = random.Random(8)
    for _ in range(60):
        plain = [draw.randbytes(draw.choice([0, 1, 100, 16_384, 70_000])) for _ in range(draw.randint(1, 5))]
        packed = b"".join(gzip.compress(part, draw.randint(0, 9)) for part in plain)
        assert b"".join(plain) == body.unpack(packed, b"gzip", limit=LIMIT)
        last = len(packed) - len(gzip.compress(plain[-1], 0)) if len(plain) > 1 else 0
        cut = packed[: draw.randint(max(last, 1), len(packed) - 1)]
        try:
            unpacked = body.unpack(cut, b"gzip", limit=LIMIT)
        except MalformedBody:
            continue
        assert unpacked in [b"".join(plain[:n]) for n in range(1, len(plain))], "cut exactly between two members"


@pytest.mark.parametrize("garbage", [b"\0", b"\0" * 40, b"trailing"])
def test_bytes_after_the_last_member_are_refused(garbage: bytes) -> None:
    """Nothing is dropped silently."""
    with pytest.raises(MalformedBody):
        body.unpack(gzip.compress(b"{}") + garbage, b"gzip", limit=LIMIT)


def test_unpacking_stops_at_the_limit() -> None:
    """For one large member, or many small ones."""
    for packed in (gzip.compress(b"x" * 10_001), gzip.compress(b"x" * 100) * 101):
        with pytest.raises(PayloadTooLarge, match="10000"):
            body.unpack(packed, b"gzip", limit=10_000)
    assert 10_000 == len(body.unpack(gzip.compress(b"x" * 100) * 100, b"gzip", limit=10_000))


@pytest.mark.parametrize(
    ("packed", "is_inline"),
    [
        (gzip.compress(b'{"text": "good"}'), True),
        (gzip.compress(b" " * 4_000_000), False),
        (gzip.compress(b" ") * 10_000, False),
    ],
    ids=["small", "small packed and large unpacked", "large packed"],
)  # fmt: skip
async def test_only_small_bodies_are_unpacked_on_the_event_loop(packed: bytes, is_inline: bool) -> None:
    """Larger ones are unpacked in a thread, within the limit of the whole body."""
    finished: list[bool] = []
    unpack = body.unpack

    def recorded(*args: Any, **kwargs: Any) -> bytes:
        answer = unpack(*args, **kwargs)
        finished.append(threading.current_thread() is threading.main_thread())
        return answer

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(body, "unpack", recorded)
        assert gzip.decompress(packed) == await body.unpacked(packed, b"gzip", limit=LIMIT)
    assert [is_inline] == finished


async def test_a_zip_bomb_is_refused_with_the_configured_limit() -> None:
    """Not with the smaller limit of the event loop."""
    with pytest.raises(PayloadTooLarge, match="1000000"):
        await body.unpacked(gzip.compress(b" " * 4_000_000), b"gzip", limit=1_000_000)
    with pytest.raises(PayloadTooLarge, match="1000 "):
        await body.unpacked(gzip.compress(b" " * 4_000_000), b"gzip", limit=1000)

"""Feedback ids: what a label needs to know of its answer, signed, in a header of the answer (``x-feedback-id``).

An id names the version, and each row's predicted label and score bin. Any gateway with the same key can therefore count
a label that comes with nothing but an id, at any later time, without a store. The key comes from a file
(``TRITON_GATEWAY_FEEDBACK_KEY_FILE``); without one, answers carry no id. It holds neither texts nor request ids.
"""

from __future__ import annotations

from base64 import urlsafe_b64decode, urlsafe_b64encode
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from hashlib import blake2b
from hmac import compare_digest
from pathlib import Path
from typing import Final, NamedTuple

import orjson

from gateway.metrics import catalog
from gateway.trace import Trace

MAX_ROWS: Final = 32
"""Answers for more texts at once carry no id: it would be too long for a header."""
MAX_CHARS: Final = 2048
MIN_KEY: Final = 16
"""Characters of a key, at least."""
_FORMAT: Final = 1
_SIGNATURE: Final = 12
"""Bytes: an id is guessed once in 2^96 tries."""
_SETTING: Final = "TRITON_GATEWAY_FEEDBACK_KEY_FILE"
_MAX_LABEL: Final = 100


class Row(NamedTuple):
    """One predicted label, and a score of the same bin as the answer's; None if it had none from 0 to 1."""

    label: str
    score: float | None


class Answered(NamedTuple):
    """What an id says of its answer."""

    endpoint: str
    version: str
    rows: tuple[Row, ...]


class FeedbackIds:
    """Writes ids with the first key, and reads those of every key, so that keys can be changed."""

    def __init__(self, keys: Sequence[bytes]) -> None:
        """``keys`` are at least one, of any length."""
        self._keys = [blake2b(key).digest() for key in keys]

    def answered(self, trace: Trace) -> None:
        """Set ``trace.feedback_id`` if the answer has labels; called for every request that has ended."""
        if trace.outcome != "ok":
            return
        rows = _rows(trace)
        if rows:
            try:
                content = orjson.dumps((_FORMAT, trace.endpoint, trace.version, rows))
            except TypeError:  # a hook's label that has no UTF-8 form
                return
            signed = urlsafe_b64encode(self._signature(self._keys[0], content) + content).rstrip(b"=")
            if len(signed) <= MAX_CHARS:
                trace.feedback_id = signed

    def read(self, text: str) -> Answered | None:
        """Return what an id says; None if it was not written with one of the keys."""
        try:
            raw = urlsafe_b64decode(text.encode("ascii") + b"=" * (-len(text) % 4))
        except ValueError:
            return None
        given, content = raw[:_SIGNATURE], raw[_SIGNATURE:]
        if not any(compare_digest(given, self._signature(key, content)) for key in self._keys):
            return None
        version, endpoint, number, rows = orjson.loads(content)
        if version != _FORMAT:
            return None
        return Answered(endpoint, number, tuple(Row(label, score) for label, score in rows))

    @staticmethod
    def _signature(key: bytes, content: bytes) -> bytes:
        return blake2b(content, digest_size=_SIGNATURE, key=key).digest()


def feedback_ids(path: str) -> FeedbackIds | None:
    """Return the ids for a key file: one key per line, the first signs. None without a file.

    Raises ``ValueError`` with the setting's name if the file cannot be read or a key is too short.
    """
    if not path:
        return None
    try:
        keys = Path(path).read_bytes().split()
    except OSError as error:
        raise ValueError(f"{_SETTING}: {path} cannot be read: {error.strerror}") from error
    if not keys or min(map(len, keys)) < MIN_KEY:
        raise ValueError(
            f"{_SETTING}: {path} must hold a key of at least {MIN_KEY} characters per line: "
            f"write one with `openssl rand -hex 32 > {path}`"
        )
    return FeedbackIds(keys)


def _rows(trace: Trace) -> list[tuple[str, float | None]]:
    """Return label and score of each row, as they were before the caller's parameters; empty if there are none."""
    results: object = trace.prepared.unaltered if trace.prepared is not None else None
    if results is None:
        answer = trace.answer
        if not isinstance(answer, Mapping):
            return []
        results = [answer] if "label" in answer else answer.get("results")
    if not isinstance(results, Sequence) or not 0 < len(results) <= MAX_ROWS:
        return []
    rows: list[tuple[str, float | None]] = []
    for result in results:
        label = result.get("label") if isinstance(result, Mapping) else None
        if not isinstance(label, str) or not 0 < len(label) <= _MAX_LABEL:
            return []  # a row's number must be its place in the answer
        score = result.get("score")
        # The bin's upper bound is in the same bin, and shorter than the score.
        is_share = isinstance(score, float) and 0 <= score <= 1
        rows.append((label, catalog.RATIO_BUCKETS[bisect_left(catalog.RATIO_BUCKETS, score)] if is_share else None))
    return rows

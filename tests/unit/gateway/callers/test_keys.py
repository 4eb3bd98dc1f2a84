"""The form of keys, their stored hashes, and their files."""

from __future__ import annotations

import json
import math
import re
from typing import Any

import pytest

from gateway.callers.keys import (
    BadKeys,
    Key,
    digest,
    is_key,
    new_key,
    read_file,
    seconds,
    written,
)


def made(**fields: Any) -> tuple[str, Key]:
    """Return a new key, and its stored form."""
    text, name = new_key()
    return text, Key(**{"id": name, "hash": digest(text.encode()).hex(), "tenant": "acme", **fields})


def written_file(*keys: Any, **fields: Any) -> bytes:
    """Write a file with these keys."""
    return json.dumps({"keys": [getattr(key, "to_json", lambda key=key: key)() for key in keys], **fields}).encode()


def test_a_key_is_recognizable_and_unguessable() -> None:
    """It has a prefix for secret scanners, a public id, and 160 random bits."""
    key, name = new_key()
    assert re.fullmatch(r"tgk_[a-z2-7]{8}_[a-z2-7]{32}", key)
    assert key.split("_")[1] == name
    assert is_key(key.encode())
    assert not is_key(b"sk-something")
    assert not is_key(key.encode() * 100)
    assert new_key()[0] != key


def test_a_key_is_found_by_its_hash() -> None:
    """The file does not contain it. Every field is read back."""
    key, kept = made(id="k1", expires="2027-01-31", operations=("infer",), endpoints=("a", "b/*"), priority="batch",
                     created=written(1), by="me", note="for tests")  # fmt: skip
    raw = written_file(kept)
    assert key not in raw.decode()
    stored = read_file(raw)[1]
    assert [kept] == list(stored.keys)
    caller = stored.known().callers[digest(key.encode())]
    assert ("k1", "acme", ("a", "b/*"), frozenset({"infer"}), "batch", seconds("2027-01-31T00:00:00Z")) == (
        caller.name, caller.tenant, caller.endpoints, caller.operations, caller.priority, caller.expires,
    )  # fmt: skip


KEY = made(id="k1")[1].to_json()


@pytest.mark.parametrize(
    ("raw", "why"),
    [
        (b"", "not JSON"), (b"[" * 100_000, "not JSON"),
        (b"[]", "not an object"), (b'{"keys": {"k1": {}}}', "keys: "), (written_file("k"), "keys.0: "),
        (written_file({**KEY, "id": ""}), "keys..id: "),
        (written_file({**KEY, "hash": "zz" * 32}), "keys.k1.hash: "),
        (written_file({**KEY, "tenant": "a\n"}), "keys.k1.tenant: it must be printable"),
        (written_file({**KEY, "operations": ["x"]}), "'x' is not an operation: use infer, metadata"),
        (written_file({**KEY, "endpoints": ["/"]}), "'/' is not a pattern of endpoints"),
        (written_file({**KEY, "class": "x"}), "'x' is not a priority class: use"),
        (written_file({**KEY, "expires": "soon"}), "keys.k1.expires: 'soon' is not a time"),
        (written_file(certificates=[{"tenant": "t"}]), "certificates.0.name: "), (written_file(ended="jti"), "ended: "),
        (written_file(quotas={"t": {"requests": 1}}), "quotas.t.requests: "),
        (written_file(quotas={"t": {"requests_per_minute": -1}}), "quotas.t.requests_per_minute: "),
        (written_file(quotas={"t": {"tokens_per_minute": math.inf}}), "quotas.t.tokens_per_minute: "),
        (written_file(KEY, KEY), "two keys have the id k1"),
    ],
)  # fmt: skip
def test_an_unusable_file_is_refused_with_the_reason(raw: bytes, why: str) -> None:
    """The message contains no hash."""
    with pytest.raises(BadKeys) as error:
        read_file(raw)
    assert why in str(error.value)
    assert len(str(error.value)) < 200

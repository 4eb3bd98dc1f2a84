"""Changes by `keys --file` are recorded beside the file, with their author and without secrets."""

# ruff: noqa: D103 - a test's name states its rule

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from deploy.cli.key_file import KeyFileStore
from deploy.controller.history import key_file
from gateway.callers import Key, digest


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "keys.json"


def _store(path: Path, by: str = "ann") -> KeyFileStore:
    return KeyFileStore(path, by=by)


def _create(path: Path, name: str, by: str = "ann") -> Key:
    store = _store(path, by)
    key = Key(name, digest(store.pepper(), name.encode()).hex(), "acme")
    with store.editing() as keys:
        keys.append(key)
    return key


def test_keys_and_quotas_are_told_in_order_by_whoever_changed_them(path: Path) -> None:
    key = _create(path, "k1")
    with _store(path, "bob").editing_quotas() as quotas:
        quotas["acme"] = {"requests_per_minute": 600, "shadow": True}
    with _store(path, "cid").editing() as keys:
        keys[0] = replace(keys[0], revoked="2026-01-01T00:00:00Z")
    with _store(path, "dan").editing_quotas() as quotas:
        quotas.clear()
    entries = key_file.read(path).entries
    limit = "requests per minute 600 (only counted)"
    says = "acme (default): infer,metadata on *"
    assert [
        ("ann", "key", "k1", "", says), ("bob", "quota", "acme", "", limit),
        ("cid", "key", "k1", says, "revoked"), ("dan", "quota", "acme", limit, ""),
    ] == [(one.by, one.kind, one.subject, one.before, one.after) for one in entries]  # fmt: skip
    assert not any(one.is_seen for one in entries)
    text = key_file.beside(path).read_text()
    assert key.hash not in text
    assert 0o600 == key_file.beside(path).stat().st_mode & 0o777


def test_an_edit_that_changes_nothing_or_fails_is_not_told(path: Path) -> None:
    _create(path, "k1")
    with _store(path).editing():
        pass
    with pytest.raises(KeyError), _store(path).editing() as keys:  # noqa: PT012 - within the edit
        keys.clear()
        raise KeyError
    assert 1 == len(key_file.read(path).entries)


def test_a_history_that_cannot_be_written_undoes_no_change(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    key_file.beside(path).mkdir()
    with _store(path).editing_quotas() as quotas:
        quotas["acme"] = {"requests_per_minute": 1}
    assert {"acme": {"requests_per_minute": 1}} == _store(path).quotas()
    assert "the history could not be written" in caplog.text


def test_the_oldest_are_dropped(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(key_file, "KEPT", 6)
    monkeypatch.setattr(key_file, "BLOCK", 2)
    for number in range(20):
        with _store(path).editing_quotas() as quotas:
            quotas["acme"] = {"requests_per_minute": number}
    told = key_file.read(path)
    assert 0 < told.dropped_until <= told.entries[0].at
    assert 6 <= len(told.entries) < 8
    assert "requests per minute 19" == told.entries[-1].after


def test_what_an_editor_broke_in_the_quotas_does_not_stop_an_edit_of_keys(path: Path) -> None:
    _create(path, "k1")
    broken: tuple[object, ...] = ({"acme": 5}, ["acme"], {"acme": {"requests_per_minute": "many"}})
    for number, quotas in enumerate(broken):
        path.write_text(json.dumps({**json.loads(path.read_text()), "quotas": quotas}))
        _create(path, f"more{number}")
    assert 4 == sum(one.kind == "key" for one in key_file.read(path).entries)


def test_lines_that_cannot_be_read_are_left_out(path: Path) -> None:
    _create(path, "k1")
    with key_file.beside(path).open("a") as file:
        file.write('{"kind": \n[1]\n')
    _create(path, "k2")
    assert ["k1", "k2"] == [one.subject for one in key_file.read(path).entries]

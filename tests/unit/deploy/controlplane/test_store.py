"""Rules of the database."""

# ruff: noqa: D103 - a test's name states its rule

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from deploy.controlplane.store import Store, dumps, loads


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    opened = Store(tmp_path / "db")
    yield opened
    opened.close()


def test_documents_come_back_in_insertion_order(store: Store) -> None:
    with store.transaction() as tx:
        for name in "bca":
            tx.put("tasks", {"id": name, "n": 1})
        tx.put("tasks", {"id": "c", "n": 2})
    with store.transaction() as tx:
        assert [doc["id"] for doc in tx.scan("tasks")] == ["b", "c", "a"]
        found = tx.get("tasks", "c")
    assert found == {"id": "c", "n": 2}


def test_failed_transaction_leaves_nothing(store: Store) -> None:

    def fail() -> None:
        with store.transaction() as tx:
            tx.put("tasks", {"id": "x"})
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fail()
    with store.transaction() as tx:
        assert tx.get("tasks", "x") is None


def test_concurrent_writers_lose_no_increment(tmp_path: Path) -> None:
    store = Store(tmp_path / "db")
    with store.transaction() as tx:
        tx.put("tasks", {"id": "x", "n": 0})

    def increment(_: int) -> None:
        with store.transaction() as tx:
            stored = tx.get("tasks", "x")
            assert stored is not None
            tx.put("tasks", {"id": "x", "n": stored["n"] + 1})

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(increment, range(64)))
    with store.transaction() as tx:
        found = tx.get("tasks", "x")
    assert found is not None
    assert found["n"] == 64
    store.close()


def test_state_survives_reopening(tmp_path: Path) -> None:
    for _ in range(2):
        store = Store(tmp_path / "db")
        with store.transaction() as tx:
            tx.put("tasks", {"id": "x"})
        store.close()


def test_json_keeps_numbers_that_python_clients_send() -> None:
    assert loads("[NaN]")[0] != loads("[NaN]")[0]
    assert loads(dumps({"n": 2**80})) == {"n": 2**80}
    assert loads(dumps({"текст": "ü"})) == {"текст": "ü"}

"""Rules of the database."""

# ruff: noqa: D103 - a test's name states its rule

import sqlite3
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from deploy.controlplane.envelope import StoreBusy
from deploy.controlplane.store import Store, dumps, loads


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    opened = Store(tmp_path / "db", busy_timeout_s=0.2)
    yield opened
    opened.close()


def test_documents_come_back_in_insertion_order(store: Store) -> None:
    with store.write() as tx:
        for name in "bca":
            tx.put("tasks", {"id": name, "n": 1})
        tx.put("tasks", {"id": "c", "n": 2})
    with store.read() as tx:
        assert [doc["id"] for doc in tx.scan("tasks")] == ["b", "c", "a"]
        found = tx.get("tasks", "c")
    assert found == {"id": "c", "n": 2}


def test_scan_narrows_by_id(store: Store) -> None:
    with store.write() as tx:
        for number in range(2000):
            tx.put("models", {"id": str(number)})
    with store.read() as tx:
        assert len(list(tx.scan("models", ids=[str(number) for number in range(1500)]))) == 1500
        assert list(tx.scan("models", ids=[])) == []
        assert list(tx.scan("tasks")) == []


def test_failed_transaction_leaves_nothing(store: Store) -> None:

    def fail() -> None:
        with store.write() as tx:
            tx.put("tasks", {"id": "x"})
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fail()
    with store.read() as tx:
        assert tx.get("tasks", "x") is None


def test_reader_sees_one_moment_while_others_write(store: Store) -> None:
    with store.read() as before:
        assert before.get("tasks", "x") is None
        with store.write() as tx:
            tx.put("tasks", {"id": "x"})
        assert before.get("tasks", "x") is None
    with store.read() as after:
        assert after.get("tasks", "x") is not None


def test_writer_that_waits_too_long_is_told_busy(store: Store) -> None:
    """Busy is an answer of its own: it becomes 503, never 500."""
    entered, leave = threading.Event(), threading.Event()

    def hold() -> None:
        with store.write():
            entered.set()
            leave.wait(60)

    thread = threading.Thread(target=hold)
    thread.start()
    entered.wait(60)
    try:
        with pytest.raises(StoreBusy), store.write():
            pass
    finally:
        leave.set()
        thread.join()


def test_database_locked_by_another_process_is_told_busy(store: Store, tmp_path: Path) -> None:
    other = sqlite3.connect(tmp_path / "db", isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    try:
        with pytest.raises(StoreBusy), store.write():
            pass
    finally:
        other.execute("ROLLBACK")
        other.close()
    with store.write() as tx:
        tx.put("tasks", {"id": "x"})


def test_concurrent_writers_lose_no_increment(tmp_path: Path) -> None:
    store = Store(tmp_path / "db", busy_timeout_s=30)
    with store.write() as tx:
        tx.put("tasks", {"id": "x", "n": 0})

    def increment(_: int) -> None:
        with store.write() as tx:
            stored = tx.get("tasks", "x")
            assert stored is not None
            tx.put("tasks", {"id": "x", "n": stored["n"] + 1})

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(increment, range(64)))
    with store.read() as tx:
        found = tx.get("tasks", "x")
    assert found is not None
    assert found["n"] == 64
    store.close()


def test_state_survives_reopening(tmp_path: Path) -> None:
    for _ in range(2):
        store = Store(tmp_path / "db")
        with store.write() as tx:
            tx.put("tasks", {"id": "x"})
        store.close()


def test_a_reader_cannot_write(store: Store) -> None:
    with pytest.raises(sqlite3.OperationalError), store.read() as tx:
        tx.put("tasks", {"id": "x"})


def test_json_keeps_numbers_that_python_clients_send() -> None:
    assert loads("[NaN]")[0] != loads("[NaN]")[0]
    assert loads(dumps({"n": 2**80})) == {"n": 2**80}
    assert loads(dumps({"текст": "ü"})) == {"текст": "ü"}

"""Rules of the database."""

# ruff: noqa: D103 - a test's name states its rule

from collections.abc import Iterator
from pathlib import Path

import pytest

from deploy.controlplane.store import Store, dumps, loads


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    opened = Store(tmp_path / "db")
    yield opened
    opened.close()


def test_failed_transaction_leaves_nothing(store: Store) -> None:

    def fail() -> None:
        with store.transaction() as tx:
            tx.put("tasks", {"id": "x"})
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fail()
    with store.transaction() as tx:
        assert tx.get("tasks", "x") is None


def test_json_keeps_numbers_that_python_clients_send() -> None:
    assert loads("[NaN]")[0] != loads("[NaN]")[0]
    assert loads(dumps({"n": 2**80})) == {"n": 2**80}
    assert loads(dumps({"текст": "ü"})) == {"текст": "ü"}

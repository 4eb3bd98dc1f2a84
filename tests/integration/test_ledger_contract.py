"""One suite over the fake ledger and the real one against a real control plane process, beside the stock CLI.

The control plane is strict: as on a ClearML server, whole fields are replaced and nothing is merged.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from gateway.errors import RegistryRefused
from gateway.registry.clearml import ClearMLRegistry
from gateway.registry.clearml.ledger import SYSTEM_TAG, ClearMLLedger
from gateway.registry.ledger import Ledger, Record
from tests.control_planes import control_plane
from tests.fakes import FakeLedger
from tests.stock import Client

pytestmark = pytest.mark.integration


Open = Callable[[], Ledger]
"""Opens a ledger of its own session, as another process would have it."""


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    """A serving Task that the tests of this file share: each uses keys of its own."""
    folder = tmp_path_factory.mktemp("served")
    with control_plane(folder / "state") as server:
        client = Client(server, folder)
        client.create("contract")
        with client.here():
            yield client


@pytest.fixture(scope="module")
def registry(served: Client) -> ClearMLRegistry:
    """The real one, of that Task."""
    return ClearMLRegistry(served.task)


@pytest.fixture(params=["fake", "clearml"], scope="module")
def ledger(request: pytest.FixtureRequest) -> Open:
    """The same, empty at first, in memory and on a server."""
    if request.param == "fake":
        fake = FakeLedger()
        return lambda: fake
    task = request.getfixturevalue("served").task
    return lambda: ClearMLRegistry(task).ledger


def _one(key: str, **value: Any) -> Record:
    return Record("load_request", key, value)


def _decisions(ledger: Ledger) -> Mapping[str, Mapping[str, Any]]:
    return ledger.read().get("load_request", {})


def test_nothing_written_reads_as_nothing(ledger: Open) -> None:
    """Reading creates nothing and is no error."""
    mine = ledger()
    assert ("", {}) == (mine.marker(), dict(mine.read()))


def test_processes_that_write_first_at_once_all_find_everything(ledger: Open) -> None:
    """Each may create the Task that holds the records: everybody reads the union, and no write replaces another key."""
    ledgers = [ledger() for _ in range(6)]
    with ThreadPoolExecutor(6) as pool:
        list(pool.map(lambda n: ledgers[n % 6].write([_one(f"first/{n}", n=n)]), range(40)))
    expected = {f"first/{n}": {"n": n} for n in range(40)}
    assert [expected] * 6 == [dict(_decisions(one)) for one in ledgers]
    ledgers[0].write([_one("first/0", n=100)])
    assert [{"n": 100}] * 6 == [_decisions(one)["first/0"] for one in ledgers]


def test_keys_and_values_come_back_as_they_were(ledger: Open) -> None:
    """Whatever an endpoint may be called, and values of every JSON type."""
    keys = ["a/b", "a.b", "a_b", "$a", "a__b", " a ", "кир", "x" * 300, 'quo"te', "br{ace"]
    value = {"weights": {"a/1": 0.25}, "text": 'né "x"\n', "list": [1, None, True], "at": 1.5}
    ledger().write([Record("version_number", key, {**value, "key": key}) for key in keys])
    assert {key: {**value, "key": key} for key in keys} == dict(ledger().read()["version_number"])


def test_a_record_is_replaced_whole_and_the_marker_moves(ledger: Open) -> None:
    """No field of the value before stays; equal while nothing happens."""
    mine = ledger()
    mine.write([_one("replaced", old=1)])
    before = mine.marker()
    assert before == mine.marker() != ""
    ledger().write([_one("replaced", new=2)])
    assert before != mine.marker()
    assert {"new": 2} == _decisions(mine)["replaced"]


def test_what_is_removed_is_gone_and_the_rest_stays(ledger: Open) -> None:
    """A record that is not there is no error."""
    mine = ledger()
    mine.write([_one(f"removed/{n}", n=n) for n in range(3)])
    ledger().remove("load_request", ["removed/0", "removed/2", "removed/3"])
    assert {"removed/1"} == {key for key in _decisions(mine) if "removed" in key}
    mine.remove("history", ["nothing"])
    mine.remove("load_request", [])
    assert {"removed/1"} == {key for key in _decisions(ledger()) if "removed" in key}


def test_stock_tools_neither_list_nor_write_the_records(served: Client, registry: ClearMLRegistry) -> None:
    """``clearml-serving list`` shows services; the companion is none, and no command touches it or its status."""
    mine = registry.ledger
    mine.write([_one("stock", n=1)])
    before = mine.marker()
    companions = registry.call("tasks", "get_all", {"system_tags": [SYSTEM_TAG], "search_hidden": True})["tasks"]
    assert {"created"} == {task["status"] for task in companions}
    listed = served.stock("list")
    assert served.task in listed
    assert not [task["id"] for task in companions if task["id"] in listed]
    served.stock("config", "--base-serving-url", "http://x/serve")
    assert before == mine.marker()


def test_credentials_that_may_only_read_are_refused_with_what_to_do(registry: ClearMLRegistry) -> None:
    """Reading goes on; what cannot be written is said once, not at each request."""

    def read_only(service: str, action: str, body: Mapping[str, Any]) -> dict[str, Any]:
        if action in ("create", "edit_hyper_params"):
            raise RegistryRefused(f"{service}.{action}: no write permission")
        return registry.call(service, action, body)

    registry.ledger.write([_one("read-only", n=1)])
    mine = ClearMLLedger(read_only, registry.followed)
    with pytest.raises(RegistryRefused, match="no write permission") as refusal:
        mine.write([_one("read-only", n=2)])
    assert "credentials" in refusal.value.hint
    assert {"n": 1} == _decisions(mine)["read-only"]

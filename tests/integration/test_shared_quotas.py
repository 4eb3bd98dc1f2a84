"""Three gateway processes and a real Redis server: they keep a tenant's quota, also while the server is away."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from gateway.callers.keys import Key, digest, new_key
from gateway.callers.rights import OPERATIONS
from tests.control_planes import control_plane
from tests.gateways import GatewayProcess
from tests.stock import Client
from tests.stores import RedisServer
from tests.unit.gateway.callers.test_keys import PEPPER, written_file
from tests.waiting import until

pytestmark = [pytest.mark.integration, pytest.mark.redis]

PASSWORD = "a secret of tests"
LIMIT = 1200
PER_SECOND = LIMIT / 60
UNEVEN = tuple(f"uneven {turn}" for turn in range(30))
IN_THREADS = ("--aux-config", "gateway.hook_isolation=thread")
HOOK = (
    "class Preprocess:\n    def process(self, body, state, collect_custom_statistics_fn=None):\n        return body\n"
)


class Fleet:
    """Three gateways that count each other as three, and their store."""

    def __init__(self, gateways: list[GatewayProcess], store: RedisServer, keys: dict[str, str]) -> None:
        self.gateways, self.store, self._keys = gateways, store, keys

    def flood(self, tenant: str, weights: tuple[int, ...], seconds: float) -> tuple[int, float]:
        """Ask as fast as one client can, unevenly, until each gateway has refused something and for so many seconds;
        return how many were answered, and the seconds that it took.
        """
        headers = {"authorization": f"Bearer {self._keys[tenant]}"}
        order = [one for one, weight in enumerate(weights) for _ in range(weight)]
        began, passed, refused = time.monotonic(), 0, set()
        with contextlib.ExitStack() as open_:
            clients = [
                open_.enter_context(httpx.Client(base_url=gateway.url, headers=headers)) for gateway in self.gateways
            ]
            while time.monotonic() < began + seconds or refused < {*order}:
                for one in order:
                    reply = clients[one].post("/serve/echo", json={})
                    assert reply.status_code in (200, 429), reply.text
                    assert str(LIMIT) == reply.headers["x-ratelimit-limit-requests"]
                    passed += reply.status_code == 200
                    refused |= {one} if reply.status_code == 429 else set()
        return passed, time.monotonic() - began

    def store_status(self, gateway: int) -> dict[str, Any]:
        """What one gateway says of the store."""
        headers = {"authorization": f"Bearer {self._keys['watcher']}"}
        found: dict[str, Any] = httpx.get(f"{self.gateways[gateway].url}/v1/status", headers=headers).json()
        return found["quotas"]["store"]  # type: ignore[no-any-return]

    def times_away(self) -> int:
        """How often a gateway has found the store away, as may happen on a busy machine: half a second without it."""
        return sum(gateway.log.read_text().count("each gateway admits its share") for gateway in self.gateways)

    def are_sharing(self, wanted: bool) -> None:
        """Wait until all gateways say that the store is, or is not, in use."""
        until(lambda: all(self.store_status(one)["in_use"] is wanted for one in range(3)))


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    """One fleet for this file; each test has a tenant of its own."""
    folder = tmp_path_factory.mktemp("fleet")
    texts, keys = {}, []
    for tenant in (*UNEVEN, "killed", "watcher"):
        texts[tenant], name = new_key()
        keys.append(Key(name, digest(PEPPER, texts[tenant].encode()).hex(), tenant, operations=tuple(OPERATIONS)))
    (folder / "keys.json.pepper").write_bytes(PEPPER)
    (folder / "keys.json").write_bytes(written_file(*keys, quotas={"*": {"requests_per_minute": LIMIT}}))
    (folder / "password").write_text(PASSWORD)
    (folder / "hook.py").write_text(HOOK)
    with control_plane(folder / "state") as server, RedisServer(folder, PASSWORD) as store:
        client = Client(server, folder)
        client.create("quotas")
        client.add("echo", "--preprocess", str(folder / "hook.py"), *IN_THREADS, engine="custom")
        with contextlib.ExitStack() as open_:
            gateways = [
                open_.enter_context(GatewayProcess(
                    client, folder / f"gateway-{number}", replicas=3, keys_file=folder / "keys.json",
                    quota_store=store.url, quota_store_password_file=folder / "password",
                )) for number in range(3)
            ]  # fmt: skip
            made = Fleet(gateways, store, texts)
            watcher = {"authorization": f"Bearer {texts['watcher']}"}
            for gateway in gateways:
                until(lambda one=gateway: _answers(one, watcher))  # type: ignore[misc]
            made.are_sharing(True)
            yield made
            assert not [gateway.log for gateway in gateways if PASSWORD in gateway.log.read_text()]


def _answers(gateway: GatewayProcess, headers: dict[str, str]) -> bool:
    try:
        return httpx.post(f"{gateway.url}/serve/echo", json={}, headers=headers).status_code == 200
    except httpx.TransportError:
        return False


def test_three_gateways_admit_one_quota(fleet: Fleet) -> None:
    """All of what the limit allows, and no more, however unevenly the requests are spread."""
    for tenant in UNEVEN:  # until no gateway was without the store meanwhile
        fleet.are_sharing(True)
        before = fleet.times_away()
        passed, seconds = fleet.flood(tenant, (8, 1, 1), 3)
        if fleet.times_away() == before:
            break
    assert LIMIT <= passed <= LIMIT + PER_SECOND * seconds + 1


def test_without_the_store_each_gateway_admits_its_share(fleet: Fleet) -> None:
    """Requests are answered meanwhile; the log, a metric and the status say so. With the store, all is as before."""
    began, away = time.monotonic(), fleet.times_away()
    passed, _ = fleet.flood("killed", (1, 1, 1), 1)
    fleet.store.kill()
    fleet.are_sharing(False)
    assert fleet.store_status(0)["problem"]
    assert "each gateway admits its share until it is back" in fleet.gateways[0].log.read_text()
    more, _ = fleet.flood("killed", (1, 1, 1), 2)
    assert more, "its share comes back by the second"
    fleet.store.start()
    fleet.are_sharing(True)
    again, _ = fleet.flood("killed", (1, 1, 1), 2)
    # The store was not told what was admitted meanwhile, and has lost what it knew before. A gateway that was without
    # it at another time too has admitted its share once more.
    shares = 6 + max(fleet.times_away() - away - 3, 0)
    assert LIMIT <= passed + more + again <= shares * LIMIT / 3 + PER_SECOND * (time.monotonic() - began)

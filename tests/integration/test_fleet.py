"""Replicas of both tiers come and go under load, as pods do: no caller sees it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.integration.fleet import AGE, Fleet, fleet, unevenness
from tests.waiting import until

pytestmark = [pytest.mark.integration, pytest.mark.long]

_REQUESTS = 300
"""Of each look at the shares: five seconds' worth."""
SPREAD = 0.4
"""Largest allowed distance of a replica's share from an equal one: a machine that is busy lets connections grow old."""


def counted(fleet: Fleet) -> list[list[int]]:
    """What each gateway and each Triton has answered."""
    return [[one.counted() for one in tier] for tier in (fleet.gateways, fleet.tritons)]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    """Two real Tritons with model sync and one real gateway."""
    with fleet(tmp_path_factory.mktemp("fleet"), say=print, **AGE) as started:
        started.together(started.start_triton, started.start_triton)
        started.start_gateway()
        yield started


def test_replicas_come_and_go_without_a_failed_request_and_share_alike(made: Fleet) -> None:
    """1 → 2 → 1 gateways and 2 → 1 Tritons; while there are two of each, each has its part."""
    with made.callers(count=12, rate=60).calling() as seen:
        first = made.gateways[0]
        made.start_gateway()

        def share_alike() -> bool:
            before, sent = counted(made), seen.requests
            until(lambda: seen.requests >= sent + _REQUESTS)
            shares = [
                [now - then for now, then in zip(*tier, strict=True)]
                for tier in zip(counted(made), before, strict=True)
            ]
            return all(unevenness(tier) <= SPREAD for tier in shares)

        until(share_alike)  # while connections of the lone gateway come of age, its share is larger
        gone = made.tritons[0]
        made.together(lambda: made.end_gateway(first), lambda: made.end_triton(gone))
        sent = seen.requests
        until(lambda: seen.requests >= sent + _REQUESTS // 5)
    assert [] == seen.failures
    assert seen.requests > 200

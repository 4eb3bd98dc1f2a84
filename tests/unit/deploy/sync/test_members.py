"""Which of a pool's Tritons hold a model: everybody computes the same, and a change moves as little as it must."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from deploy.sync.members import SETTLE_S, Members, look_up, myself
from gateway import pools
from gateway.triton.addresses import one_family

NAMES = [f"model-{number}" for number in range(600)]


def test_models_are_spread_evenly_over_the_members() -> None:
    """600 models twice over 20 Tritons: 60 each on average, nobody has twice that."""
    members = [f"10.0.0.{number}" for number in range(20)]
    counts = Counter(member for name in NAMES for member in pools.holders(name, members, 2))
    assert 20 == len(counts)
    assert 1200 == sum(counts.values())
    assert max(counts.values()) < 100
    assert min(counts.values()) > 30


@given(st.sets(st.text(min_size=1), min_size=2, max_size=8), st.integers(1, 4), st.data())
def test_a_member_that_goes_moves_only_what_it_held(members: set[str], copies: int, data: st.DataObject) -> None:
    """And one that comes takes only what it then holds: the same read backwards."""
    gone = data.draw(st.sampled_from(sorted(members)))
    for name in NAMES[:20]:
        before, after = pools.holders(name, members, copies), pools.holders(name, members - {gone}, copies)
        assert min(copies, len(members)) == len(before)
        assert set(before) - {gone} <= set(after)
        if gone not in before:
            assert before == after


def test_members_count_when_they_have_stayed_the_same_for_a_while() -> None:
    """Not the first who starts alone, not a look that misses one, not a look that fails."""
    found = Members(["a"])
    assert found.hold("m", 1) is None
    found.note(["a"], 0)
    found.note(["a", "b"], 5)
    found.note(["a", "b"], 5 + SETTLE_S - 1)
    assert found.hold("m", 1) is None
    found.note([], 5 + SETTLE_S)
    found.note(["b"], 6 + SETTLE_S)  # not ready, so not in its own list: it is there all the same
    assert frozenset("ab") == found.settled
    found.note(["a"], 20 + SETTLE_S)
    found.note(["a", "b"], 21 + SETTLE_S)
    found.note(["a", "b"], 40 + SETTLE_S)
    assert frozenset("ab") == found.settled
    assert found.hold("m", 2) is True
    assert {True, False} == {found.hold(name, 1) for name in NAMES}


def test_a_list_and_a_name_are_looked_up() -> None:
    """What cannot be looked up is nobody."""
    assert ["10.0.0.1", "10.0.0.2"] == look_up("10.0.0.1:8001,10.0.0.2:8001")
    assert "127.0.0.1" in look_up("localhost:8001")
    assert [] == look_up("nowhere.invalid:8001")


def test_a_member_counts_by_its_address_of_the_family_that_the_others_have() -> None:
    """A pod has an IPv4 and an IPv6 address; the Service publishes those of one family, whichever is the cluster's."""
    four, six = ["10.0.0.1", "10.0.0.2"], ["fd00::1", "fd00::2"]
    for found in (four, six):
        held = []
        for number in range(2):
            member = Members([four[number], six[number]])
            member.note(found, 0)
            member.note(found, SETTLE_S)
            assert frozenset(found) == member.settled
            held.append([member.hold(name, 1) for name in NAMES])
        assert {1} == {one + other for one, other in zip(*held, strict=True)}, "each model is on one of the two"


def test_a_server_with_two_addresses_is_one() -> None:
    """Of a name with both families, only IPv4 counts; a name with IPv6 alone has those."""
    assert {"10.0.0.1"} == one_family(["10.0.0.1", "fd00::1"])
    assert {"fd00::1", "fd00::2"} == one_family(["fd00::1", "fd00::2"])


def test_a_member_is_known_by_its_name_or_its_own_addresses() -> None:
    """IPv4 first."""
    assert ("triton-0",) == myself("triton-0")
    found = myself("")
    assert found
    assert sorted(found, key=lambda ip: ":" in ip) == [*found]

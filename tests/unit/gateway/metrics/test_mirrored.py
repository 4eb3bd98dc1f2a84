"""Groups of mirrored requests, and names of labels that mean others."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.metrics.mirrored import (
    LABEL,
    LANGUAGE,
    LENGTH,
    LENGTHS,
    OTHER,
    PLACES,
    Features,
    Groups,
    renamed,
    with_names,
)

ENGLISH, GERMAN = "the film that we have seen is not what it was", "das ist nicht der Film den wir gesehen haben"


def counted(requests: Sequence[tuple[str, Any, bool]]) -> Counter[tuple[str, str, bool]]:
    """Return what is counted of requests: label, text, and whether the versions agree."""
    found: Counter[tuple[str, str, bool]] = Counter()
    groups = Groups(lambda by, group, agreed: found.update([(by, group, agreed)]))
    for label, text, agreed in requests:
        groups.see(Features(label, text), agreed)
    return found


def test_every_request_counts_once_of_each_kind() -> None:
    """Also those that came before the groups were chosen."""
    found = counted(
        [("A" if number % 3 else "B", ENGLISH if number % 4 else GERMAN, number % 5 > 0) for number in range(60)]
    )
    for by in (LABEL, LANGUAGE, LENGTH):
        assert (48, 12) == tuple(
            sum(n for key, n in found.items() if key[0] == by and key[2] is agreed) for agreed in (True, False)
        )
    assert (40, 20) == tuple(found[LABEL, name, True] + found[LABEL, name, False] for name in "AB")
    assert (45, 15) == tuple(found[LANGUAGE, name, True] + found[LANGUAGE, name, False] for name in ("en", "de"))


@given(st.lists(st.tuples(st.text(max_size=3), st.text(max_size=40), st.booleans()), max_size=150))
def test_there_are_few_groups_whatever_is_answered(requests: list[tuple[str, str, bool]]) -> None:
    """Series of metrics stay bounded."""
    assert len({key[:2] for key in counted(requests)}) <= PLACES


def test_the_most_frequent_labels_have_groups_of_their_own() -> None:
    """A rare one that comes first takes no place of a frequent one."""
    chance = random.Random(1)
    frequent = [f"L{number}" for number in range(8)]
    rare = [f"rare {number}" for number in range(30)]
    names = [rare[0], *frequent, *frequent, rare[1], rare[2], rare[3], *chance.choices([*frequent, *rare], k=500)]
    found = counted([(name, "", True) for name in names])
    assert {*frequent, OTHER} == {group for by, group, _ in found if by == LABEL}


def test_the_longest_texts_are_a_class_of_their_own() -> None:
    """About one in sixteen: a fault of long texts alone fills it. By the lengths of these texts, whatever they are."""
    chance = random.Random(2)
    for scale in (3, 300):
        lengths = [scale + int(chance.expovariate(1 / (10 * scale))) for _ in range(2_000)]
        longest = sorted(lengths)[-124]
        found = counted([("A", "x" * length, length < longest) for length in lengths])
        long = found[LENGTH, "long", True], found[LENGTH, "long", False]
        assert 0.03 < sum(long) / 2_000 < 0.1
        assert long[1] / sum(long) > 0.7


def test_texts_of_one_length_are_one_class() -> None:
    """There is no long one among them."""
    assert {LENGTHS[1]} == {group for by, group, _ in counted([("A", "same", True)] * 40) if by == LENGTH}


def test_of_a_pair_of_texts_both_are_counted() -> None:
    """And what has no text or no label is in no such group."""
    found = counted([("", (ENGLISH, GERMAN * 2), True)] * 20 + [("A", "", True)] * 20)
    assert (20, 20) == (sum(n for key, n in found.items() if key[0] == LENGTH), found[LABEL, "A", True])


@pytest.mark.parametrize(
    ("stable", "canary", "names"),
    [
        (["A", "B"], ["A", "B"], {}),
        (["A", "B"], ["B", "A"], {}),
        (["LABEL_0", "LABEL_1"], ["no", "yes"], {"no": "LABEL_0", "yes": "LABEL_1"}),
        (["A", "B", "C"], ["A", "X", "C"], {"X": "B"}),
        (["A", "B"], ["A", "B", "C"], {}),
        (["A", "B"], ["B", "C"], {}),
        (["O", "B-PER"], ["O", "B-WHO"], {"B-WHO": "B-PER", "WHO": "PER"}),
    ],
)  # fmt: skip
def test_a_new_name_means_the_label_at_its_position(
    stable: list[str], canary: list[str], names: dict[str, str]
) -> None:
    """A name that both have means itself; so a new order alone, and a new label at the end, change nothing."""
    assert names == renamed(stable, canary)


def test_only_labels_of_an_answer_are_renamed() -> None:
    """Words of the text may look like labels."""
    names = {"no": "BAD", "WHO": "PER"}
    assert {"label": "BAD", "scores": {"BAD": 1.0}, "tokens": 3} == with_names(
        {"label": "no", "scores": {"no": 1.0}, "tokens": 3}, names
    )
    assert {"results": [{"label": "BAD"}]} == with_names({"results": [{"label": "no"}]}, names)
    assert {"entities": [{"entity_group": "PER", "word": "no"}]} == with_names(
        {"entities": [{"entity_group": "WHO", "word": "no"}]}, names
    )

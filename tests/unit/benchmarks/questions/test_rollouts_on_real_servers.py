"""Real rollouts as a table, and the models that are wrong about one group of the texts."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from benchmarks.questions.rollouts_on_real_servers import KINDS, missing, shown
from benchmarks.shared import topics
from benchmarks.shared.results import saved


@pytest.fixture(scope="module")
def texts() -> list[str]:
    """A thousand of them, always the same."""
    return topics.texts(99, 1_000)


@pytest.fixture(scope="module")
def sound(texts: list[str], tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """What the stable model says of them."""
    return topics.answers(topics.bundle(tmp_path_factory.mktemp("sound") / "model"), texts)


def test_a_model_answers_with_all_its_classes(sound: list[str]) -> None:
    """One of them is rare."""
    counts = Counter(sound)
    assert {*topics.LABELS} == {*counts}
    assert 0.02 < counts["FONTS"] / len(sound) < 0.08


def test_a_model_that_is_trained_on_other_texts_answers_a_few_differently(
    texts: list[str], sound: list[str], tmp_path: Path
) -> None:
    """Evenly: no class as often as a fault does."""
    new = topics.answers(topics.bundle(tmp_path / "model", seed=2), texts)
    differs = [a != b for a, b in zip(sound, new, strict=True)]
    assert 0.03 < sum(differs) / len(texts) < 0.1
    for label in topics.LABELS:
        of = [other for other, said in zip(differs, sound, strict=True) if said == label]
        assert sum(of) / len(of) < 0.35


@pytest.mark.parametrize("fault", topics.FAULTS)
def test_a_fault_changes_the_answers_of_its_group_alone(
    texts: list[str], sound: list[str], tmp_path: Path, fault: str
) -> None:
    """All of them, and less than one text in twelve."""
    new = topics.answers(topics.bundle(tmp_path / "model", fault=fault), texts)
    differs = {number for number, (a, b) in enumerate(zip(sound, new, strict=True)) if a != b}
    expected = {
        "fails": {n for n, answer in enumerate(new) if not answer},
        "vanished": {n for n, label in enumerate(sound) if label == "FONTS"},
        "class": {n for n, label in enumerate(sound) if label == "FONTS"},
        "long": {n for n, text in enumerate(texts) if len(text.split()) > 40},
        "german": {
            n for n, text in enumerate(texts) if len({*text.split()} & {"der", "die", "das", "und", "nicht"}) > 1
        },
    }[fault]
    assert expected <= differs
    assert 0.01 < len(differs) / len(texts) < 0.08


def test_rollouts_that_are_kept_are_not_made_again() -> None:
    """Of each kind as many as it says."""
    assert [("the same model", 1), ("the same model", 2), ("all long texts are wrong", 0)] == missing(
        [{"kind": "the same model"}, {"kind": "a retrain"}], ["the same model", "all long texts are wrong"]
    )


def test_the_table_says_how_each_kind_ended() -> None:
    """With the share of differing texts and what found it."""
    bad = {"kind": "all long texts are wrong", "differs": 0.06, "ended": "roll back", "found_by": "pairs",
           "mirrored": {"compared": 300}}  # fmt: skip
    good = [
        {**bad, "kind": "a retrain", "differs": share, "ended": "promote", "found_by": None} for share in (0.06, 0.07)
    ]
    assert [
        "| a retrain | 6.0% to 7.0% | 2 | 2 | 0 | – | – |",
        "| all long texts are wrong | 6.0% | 1 | 0 | 1 | 300, 300 | pairs |",
    ] == shown([*good, bad]).splitlines()[2:]


def test_every_saved_rollout_ended_as_it_should() -> None:
    """Each fault was rolled back; the same models and fine retrains were promoted. No request failed."""
    found = saved("rollouts")["rollouts"]
    assert [] == missing(found, [*KINDS])
    for one in found:
        assert (one["ends"], 0) == (one["ended"], one["client"]["failed"]), one["kind"]

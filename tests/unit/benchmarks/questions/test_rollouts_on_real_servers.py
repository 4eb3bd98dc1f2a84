"""Real rollouts as a table, and the models that are wrong about their share of the texts."""

from __future__ import annotations

import json
import random
import threading
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
from tokenizers import Tokenizer

from benchmarks.questions import decisions_of_the_gate
from benchmarks.questions.decisions_of_the_gate import draws
from benchmarks.questions.rollouts_on_real_servers import KINDS, LOOKS, Lanes, missing, recorded, replayed, shown
from benchmarks.shared import tiny
from benchmarks.shared.results import saved
from benchmarks.shared.rollouts import SHORT, begin, rolled
from deploy.rollout.looks import LookRecord, judged
from deploy.rollout.steps import Observation, Rollout

FAILED = -1


@pytest.fixture
def answers(tmp_path: Path) -> Callable[..., list[int]]:
    """Labels that a seeded model gives 600 texts, always the same; ``FAILED`` if the call fails."""

    def answer(**seed: Any) -> list[int]:
        bundle = tiny.seeded_bundle(tmp_path / str(len([*tmp_path.iterdir()])), **seed)
        options = onnxruntime.SessionOptions()
        options.log_severity_level = 4
        session = onnxruntime.InferenceSession(str(bundle / "model.onnx"), options)
        tokenizer = Tokenizer.from_file(str(bundle / "tokenizer.json"))
        chance, found = random.Random(1), []
        for _ in range(600):
            row = tokenizer.encode(tiny.seeded_text(chance.random))
            inputs = {"input_ids": np.array([row.ids]), "attention_mask": np.array([row.attention_mask])}
            try:
                (logits,) = session.run(None, inputs)
                found.append(int(logits[0].argmax()))
            except onnxruntime.capi.onnxruntime_pybind11_state.InvalidArgument:
                found.append(FAILED)
        return found

    return answer


def differing(one: list[int], other: list[int]) -> float:
    """The share of texts with other answers."""
    return float(np.mean(np.array(one) != np.array(other)))


def test_seeded_models_are_wrong_about_their_share_of_the_texts(answers: Callable[..., list[int]]) -> None:
    """Being slow changes no answer; one that is turned round always says the other label."""
    right = answers()
    assert FAILED not in right
    assert 0.4 < np.mean(right) < 0.6
    assert 0.07 < differing(right, answers(flipped=0.1)) < 0.13
    assert 1.0 == differing(right, answers(flipped=1.0))
    assert 0.4 < differing(right, answers(always=True)) < 0.6
    assert {0} == {*answers(always=True)}
    assert right == answers(steps=2)
    failing = answers(failing=0.02)
    assert 0.005 < failing.count(FAILED) / 600 < 0.04
    assert [one for one in right if one != FAILED][:5] == failing[:5]


def test_the_table_has_real_rollouts_beside_those_replayed() -> None:
    """Kinds without a rollout are left out; half of the requests and the most."""
    name = "25 % flipped"
    assert name in KINDS
    found = [
        {"kind": name, "ended": "roll back", "found_by": "pairs", "canary_requests": 20 + number, "slower": 1.0}
        for number in range(3)
    ]
    again = {name: {"rolled_back": 200, "promoted": 0, "runs": 200, "canary_requests": [*range(1, 20)],
                    "decided_by": {"pairs": 200}}}  # fmt: skip
    rows = shown(found, again).splitlines()
    assert ["| 25 % flipped | 3 | 0 | 3 | 21, 22 | pairs | 0 of 200 | 200 | 10, 19 | pairs |"] == rows[2:]
    late = {"kind": "30 % slower", "ended": "roll back", "found_by": "latency", "canary_requests": 9, "slower": 1.3}
    (row,) = shown([{**late, "times_as_slow": times} for times in (1.5, 1.2)], {}).splitlines()[2:]
    assert row.startswith("| 30 % slower (measured: 1.2 to 1.5 times as slow) | 2 |")


@pytest.mark.parametrize(("kind", "phase"), [("the same model", "promoted"), ("25 % flipped", "rolled_back")])
def test_a_rollout_that_is_replayed_ends_as_it_did(kind: str, phase: str) -> None:
    """Each with other looks in another order; a healthy one goes through all steps, at their shares."""
    told: list[list[LookRecord]] = []
    for seed in range(2):
        draw, looks = draws(np.random.default_rng(seed), decisions_of_the_gate.KINDS[kind], SHORT), []

        def look(rollout: Rollout, now: float, draw=draw, looks=looks) -> Observation:
            looks.append(LookRecord(now, rollout.weight, seen := draw(rollout)))
            return seen

        assert phase == rolled(SHORT, look).phase
        told.append(looks)
    ends = [replayed(told, seed) for seed in range(20)]
    assert {phase} == {end.phase for end in ends}
    assert len({end.gate.stable_requests for end in ends}) > 3
    assert ends[0] == replayed(told, 0)


def test_looks_are_read_by_kind_and_rollout() -> None:
    """As they are saved, a line for each rollout."""
    look = LookRecord(1.0, 10.0, Observation())
    line = json.dumps({"kind": "a", "run": 3, "looks": [look.to_json()]})
    assert {"a": {3: [look]}} == recorded([line])


def test_rollouts_that_are_kept_are_not_made_again() -> None:
    """The next ones are of each kind in turn."""
    assert [("a", 0), ("b", 0), ("a", 1), ("b", 1)] == missing([], ["a", "b"], 2)
    assert [("b", 0), ("a", 1), ("b", 1)] == missing([{"kind": "a"}, {"kind": "c"}], ["a", "b"], 2)


def test_rollouts_at_the_same_time_are_of_different_kinds() -> None:
    """A kind is one endpoint. Two lanes: the third rollout begins when one of the first two is over."""
    both = threading.Barrier(2)
    lock, running, found = threading.Lock(), Counter[str](), []

    def roll_out(kind: str, run: int) -> tuple[str, int]:
        with lock:
            running[kind] += 1
            assert 1 == running[kind]
        if run == 0:
            both.wait(30)
        with lock:
            running[kind] -= 1
        return kind, run

    wanted = [("a", 0), ("a", 1), ("b", 0), ("a", 2), ("b", 1)]
    Lanes(wanted, roll_out, found.append).run(2)
    assert sorted(wanted) == sorted(found)


def test_a_rollout_that_breaks_ends_the_others_and_loses_none() -> None:
    """What was found before is kept; nothing new begins."""

    def roll_out(kind: str, run: int) -> tuple[str, int]:
        if run == 1:
            raise ValueError(kind)
        return kind, run

    found: list[tuple[str, int]] = []
    with pytest.raises(ValueError, match="a"):
        Lanes([("a", 0), ("a", 1), ("a", 2)], roll_out, found.append).run(2)
    assert [("a", 0)] == found


def test_what_was_recorded_is_decided_again_as_it_was_and_replays_agree() -> None:
    """Every real rollout with its looks, to the request; of the replays of each kind nineteen in twenty at least."""
    real = {(one["kind"], one["run"]): one for one in saved("rollouts")["rollouts"]}
    told = recorded(LOOKS.read_text().splitlines())
    for kind, runs in told.items():
        for run, looks in runs.items():
            end, was = judged(begin(SHORT), looks), real[kind, run]
            assert (was["ended"], was["canary_requests"], was["evidence"]) == (
                end.history[-1].what, end.gate.canary_requests, end.gate.describe()["evidence"]
            )  # fmt: skip
    again = saved("rollouts-replayed")
    assert told.keys() == again.keys()
    for kind, one in again.items():
        agreed = one["promoted" if KINDS[kind].ends == "promote" else "rolled_back"]
        assert agreed >= 0.95 * one["runs"], kind

"""Sentences on how two versions differ: uneven inputs, other answers, several gateways merged."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from gateway.metrics import drift
from gateway.metrics.compared import read, sentences
from gateway.metrics.drift import Evidence, Verdict


def one(
    variable: str, kind: str, counts: Mapping[str, float], *, days: float = 1_000.0, stable: float = 1_000.0,
    version: str = "2",
) -> dict[str, Any]:  # fmt: skip
    """A variable as `/v1/status` tells it: stable's values are even."""
    names = (*counts, drift.OTHER, drift.MISSING)
    shares = (*drift.shares([stable / len(counts)] * len(counts) + [0, 0]).tolist(),)
    evidence = Evidence(days, days, 0.1, 7.0)
    verdict = Verdict("e", version, variable, names, shares, (*counts.values(), 0.0, 0.0), stable, evidence)
    return {**verdict.described(), "beside": "1", "kind": kind}


EVEN = {"en": 200.0, "de": 200.0}
UNEVEN = {"en": 360.0, "de": 40.0}


def test_differing_texts_are_reported_as_an_uneven_split() -> None:
    """With the variable, the bin that moved most, and both shares."""
    found = sentences(
        read([{"compared": [one("language", "texts", UNEVEN), one("letter_case", "texts", EVEN, days=0.1)]}])
    )
    assert ["texts"] == list(found)
    assert "language: en 90.0%, stable 50.0%" in found["texts"]
    assert "split unevenly" in found["texts"]
    assert "letter_case" not in found["texts"]


def test_other_answers_are_not_an_uneven_split() -> None:
    """Each kind of difference has its own sentence."""
    found = sentences(read([{"compared": [
        one("predicted_label", "answers", UNEVEN), one("token_length", "tokens", UNEVEN),
        one("mine", "declared", UNEVEN),
    ]}]))  # fmt: skip
    assert ["tokens", "answers", "declared"] == list(found)
    assert not any("unevenly" in sentence for sentence in found.values())
    assert "answers differently" in found["answers"]
    assert "tokenizer" in found["tokens"]


def test_other_answers_to_other_texts_are_attributed_to_the_texts() -> None:
    """The model should not be suspected first."""
    both = [one("language", "texts", UNEVEN), one("predicted_label", "answers", UNEVEN)]
    assert sentences(read([{"compared": both}]))["answers"].endswith("; its texts may be the reason")
    assert "may be the reason" not in sentences(read([{"compared": both[1:]}]))["answers"]


def test_evidence_of_several_gateways_is_averaged() -> None:
    """So the alarm budget holds for all together; the counts are those of the gateway with the most."""
    statuses = [
        {"compared": [one("language", "texts", UNEVEN, days=40.0)]},
        {"compared": [one("language", "texts", {"en": 500.0, "de": 480.0}, days=2.0)]},
        {},
    ]
    (found,) = read(statuses)
    assert (21.0, 980.0, "steady") == (found.verdict.evidence.days, found.verdict.n, found.verdict.state)
    assert {} == sentences([found])
    assert 2 == len(read([{"compared": [one("a", "texts", EVEN), one("a", "texts", EVEN, version="3")]}]))


def test_bins_of_numbers_are_named_by_their_upper_bounds() -> None:
    """As on the report's page."""
    verdict = Verdict(
        "e", "2", "top_score", ("0.5", "0.9", "+Inf", "missing"), (0.3, 0.3, 0.3, 0.1), (10.0, 10.0, 900.0, 0.0), 900.0,
        Evidence(99.0, 99.0, 0.1, math.nan),
    )  # fmt: skip
    found = sentences(read([{"compared": [{**verdict.described(), "beside": "1", "kind": "answers"}]}]))
    assert "top_score: above 0.9 97.8%, stable 30.0%" in found["answers"]

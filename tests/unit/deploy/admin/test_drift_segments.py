"""Segments of a payload log: those whose texts or answers moved are named, the others are not."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from deploy.admin.drift_segments import MOST, NONE, OTHERS, changes, of_log, segment_of, sentences
from deploy.admin.payload_texts import Read, Wanted
from deploy.tools.errors import DeployError
from gateway.metrics.drift import Bins, Verdict, enum_bins, scalar_bins

ENGLISH = "this is the film that we have seen and it was good"
GERMAN = "das ist der film den wir nicht gesehen haben und er war gut"


def verdict(variable: str, bins: Bins, version: str = "1") -> Verdict:
    """A variable as the whole endpoint's report has it."""
    return Verdict("e", version, variable, bins.names, bins.ratios(), bins.counts, bins.total)


LABEL = verdict("predicted_label", enum_bins({"GOOD": 7000, "BAD": 3000}))
LANGUAGE = verdict("language", enum_bins({"en": 9900, "none": 100}))
SCORE = verdict("top_score", scalar_bins([i / 1000 for i in range(500, 1000)] * 20))


def record(tenant: str, text: str, label: str, **more: Any) -> dict[str, Any]:
    """What the log keeps of a request."""
    return {"time": "2026-11-20T08:00:00Z", "endpoint": "e", "version": "1", "tenant": tenant,
            "request": {"text": text, "user": {"country": tenant[:1]}}, "answer": {"label": label, "score": 0.75},
            **more}  # fmt: skip


@pytest.fixture
def log(tmp_path: Path) -> Callable[..., Path]:
    """A log of these records."""

    def write(*records: dict[str, Any]) -> Path:
        (tmp_path / "payloads-1.jsonl").write_text("".join(f"{json.dumps(one)}\n" for one in records))
        return tmp_path

    return write


def traffic(chance: random.Random, tenant: str, number: int, *, bad: float = 0.3, text: str = ENGLISH) -> list[Any]:
    """Requests of one tenant."""
    return [record(tenant, text, "BAD" if chance.random() < bad else "GOOD") for _ in range(number)]


def test_the_segment_in_which_it_is_is_named(log: Callable[..., Path]) -> None:
    """One of four tenants writes German, another gets more bad answers; the others are unchanged."""
    chance = random.Random(1)
    where = log(
        *traffic(chance, "acme", 400), *traffic(chance, "bolt", 300, text=GERMAN),
        *traffic(chance, "coda", 200, bad=0.6), *traffic(chance, "dune", 20),
    )  # fmt: skip
    parts = of_log(where, Wanted("e"), "tenant", [LABEL, LANGUAGE], Read())
    lines = [*sentences(parts, "tenant")]
    assert ["acme", "bolt", "coda", "dune"] == [line.split()[1] for line in lines]
    assert "tenant acme (43.5% of 920 requests of e/1): nothing moved" == lines[0]
    assert lines[1].endswith(": language other +99.5%, en -98.8%")
    assert "predicted_label " in lines[2]
    assert "language" not in lines[2]
    assert lines[3].endswith("too few values to decide")
    (acme, *_) = parts["e", "1", "predicted_label"]
    assert (400, 400.0, {}) == (acme.requests, acme.verdict.n, acme.moved)
    assert {"segment": "acme", "requests": 400, "n": 400.0} == {
        name: acme.described()[name] for name in ("segment", "requests", "n")
    }


def test_like_traffic_of_many_segments_names_none(log: Callable[..., Path]) -> None:
    """Of sixty logs with nine segments each, chance alone names at most one in a hundred."""
    named = 0
    for seed in range(60):
        chance = random.Random(seed)
        where = log(*(one for tenant in "abcdefghi" for one in traffic(chance, tenant, 100)))
        parts = of_log(where, Wanted("e"), "tenant", [LABEL, LANGUAGE], Read())
        named += any(part.moved for of in parts.values() for part in of)
    assert named <= 2


def test_scores_are_counted_into_the_bins_of_their_reference(log: Callable[..., Path]) -> None:
    """Each ends with its bound; all of these are the same score."""
    (part,) = of_log(log(*traffic(random.Random(1), "acme", 60)), Wanted("e"), "tenant", [SCORE], Read()).values()
    (place,) = (i for i, count in enumerate(part[0].verdict.counts) if count)
    assert float(SCORE.bins[place - 1]) < 0.75 <= float(SCORE.bins[place])
    assert changes(part[0]).startswith(f"{SCORE.named(SCORE.bins[place])} +8")


def test_rare_segments_are_one_and_a_key_that_is_not_there_is_told(log: Callable[..., Path]) -> None:
    """Callers choose the values, so the number of rows is limited."""
    chance = random.Random(1)
    where = log(*(one for i in range(20) for one in traffic(chance, f"tenant-{i}", 30 - i)))
    parts = of_log(where, Wanted("e"), "tenant", [LABEL], Read())
    (found,) = parts.values()
    assert MOST + 1 == len(found)
    assert sum(30 - i for i in range(MOST, 20)) == {one.segment: one.requests for one in found}[OTHERS]
    with pytest.raises(DeployError, match=r"no request of e in .* has colour"):
        of_log(where, Wanted("e"), "colour", [LABEL], Read())


def test_too_many_values_are_refused(log: Callable[..., Path], monkeypatch: pytest.MonkeyPatch) -> None:
    """Ten thousand names are no useful segments, and would need much memory."""
    monkeypatch.setattr("deploy.admin.drift_segments._MAX_VALUES", 10)
    where = log(*(record(f"t{i}", ENGLISH, "GOOD") for i in range(12)))
    with pytest.raises(DeployError, match="tenant has more than 10 values"):
        of_log(where, Wanted("e"), "tenant", [LABEL], Read())


def test_versions_without_a_reference_and_answers_of_other_forms_harm_nothing(log: Callable[..., Path]) -> None:
    """A list of results, all labels of each text, an answer that is something else."""
    base = record("a", ENGLISH, "GOOD")
    answers = [
        {"results": [{"label": "GOOD", "score": 0.9}, {"label": "BAD", "score": 0.8}]},
        [[{"label": "GOOD", "score": 0.1}, {"label": "BAD", "score": 0.9}]], "text", None, {"label": "NEW"},
    ]  # fmt: skip
    where = log(*({**base, "answer": answer} for answer in answers), {**base, "version": "2"})
    (part,) = of_log(where, Wanted("e"), "tenant", [LABEL], Read())["e", "1", "predicted_label"]
    assert (1.0, 2.0, 1.0, 0.0) == part.verdict.counts
    assert "" == changes(part)


@pytest.mark.parametrize(
    ("key", "value"),
    [("tenant", "acme"), ("user.country", "a"), ("route", NONE), ("text", ENGLISH), ("user", NONE), ("user.x.y", NONE)],
)
def test_a_key_is_a_field_of_the_request_or_one_of_the_log(key: str, value: str) -> None:
    """Objects and lists do not count as values."""
    assert value == segment_of(record("acme", ENGLISH, "GOOD"), key)

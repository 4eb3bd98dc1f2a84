"""The cosine of embeddings to a mean: of the reference, or of the first vectors."""

# ruff: noqa: D103 - a test's name states its rule

from __future__ import annotations

import numpy as np
import pytest

from gateway.metrics import drift
from gateway.metrics.embeddings import LEARNED, Cosines, vectors_of


def drawn(number: int, towards: float = 2.0, size: int = 8, seed: int = 0) -> list[object]:
    """Return vectors around a direction."""
    random = np.random.default_rng(seed)
    return [*(random.normal(size=(number, size)) + np.eye(size)[0] * towards)]


def test_a_cosine_is_to_the_references_mean_and_length_does_not_count() -> None:
    found: list[float] = []
    cosines = Cosines((0.0, 2.0), found.extend)
    cosines.see([np.array([0.0, 7.0]), np.array([3.0, 0.0]), [0.0, -1.0], np.array([1.0, 1.0])])
    assert np.allclose([1, 0, -1, 0.5**0.5], found)


def test_without_a_reference_the_first_vectors_make_the_mean_and_are_not_counted() -> None:
    """What a capture then takes counts the same cosines as those that it counted itself."""
    found: list[float] = []
    cosines = Cosines((), found.extend)
    cosines.see(drawn(LEARNED - 1))
    assert ((), []) == (cosines.mean, found)
    cosines.see(drawn(1, seed=1))
    assert cosines.mean
    assert not found
    cosines.see(drawn(50, seed=2))
    again: list[float] = []
    Cosines(cosines.mean, again.extend).see(drawn(50, seed=2))
    assert len(found) == 50
    assert np.allclose(found, again)


def test_vectors_of_another_direction_have_another_cosine() -> None:
    found: list[float] = []
    cosines = Cosines((1.0, *[0.0] * 7), found.extend)
    cosines.see(drawn(200, seed=3))
    cosines.see(drawn(200, towards=-2.0, seed=4))
    assert np.mean(found[:200]) > 0.4
    assert np.mean(found[200:]) < -0.4


@pytest.mark.parametrize(
    ("answer", "number"),
    [
        ({"embedding": np.ones(3)}, 1), ({"embeddings": np.ones((2, 3))}, 2), ({"embeddings": [[1.0], [2.0]]}, 2),
        ({"label": "GOOD"}, 0), (b"bytes", 0), (None, 0), ({"embeddings": "no"}, 0),
    ],
)  # fmt: skip
def test_vectors_are_found_in_answers_of_embedding_tasks_only(answer: object, number: int) -> None:
    assert number == len(vectors_of(answer))


@pytest.mark.parametrize("mean", [(1.0,) * 4, ()])
def test_vectors_that_cannot_be_compared_are_skipped(mean: tuple[float, ...]) -> None:
    """Zero vectors, vectors that are not finite, and truncated ones."""
    found: list[float] = []
    cosines = Cosines(mean, found.extend)
    cosines.see([np.ones(4)] * LEARNED)
    found.clear()
    cosines.see([np.ones(4), np.zeros(4), np.full(4, np.nan), np.ones(2), np.ones((1, 4)), []])
    assert [1.0] == found


def test_a_reference_keeps_its_mean() -> None:
    """To six digits."""
    reference = drift.Reference({"embedding_cosine": {"0.1": 1, "+Inf": 0, "missing": 0}}, mean=(0.25, -0.1234567))
    decoded = drift.decode(drift.encode(reference))
    assert drift.Reference(reference.bins, mean=(0.25, -0.123457)) == decoded

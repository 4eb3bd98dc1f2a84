"""The cosine of embeddings to a mean: of the reference, or of the first vectors."""

# ruff: noqa: D103 - a test's name states its rule

from __future__ import annotations

import numpy as np
import pytest

from gateway.metrics.embeddings import LEARNED, Cosines, vectors_of


def drawn(number: int, towards: float = 2.0, size: int = 8, seed: int = 0) -> list[object]:
    """Return vectors around a direction."""
    random = np.random.default_rng(seed)
    return [*(random.normal(size=(number, size)) + np.eye(size)[0] * towards)]


def test_a_cosine_is_to_the_references_mean_and_length_does_not_count() -> None:
    vectors = [np.array([0.0, 7.0]), np.array([3.0, 0.0]), [0.0, -1.0], np.array([1.0, 1.0])]
    assert np.allclose([1, 0, -1, 0.5**0.5], Cosines((0.0, 2.0)).of(vectors))


def test_without_a_reference_the_first_vectors_make_the_mean_and_are_not_counted() -> None:
    """What a capture then takes counts the same cosines as those that it counted itself."""
    cosines = Cosines(())
    assert ([], ()) == (cosines.of(drawn(LEARNED - 1)), cosines.mean)
    assert [] == cosines.of(drawn(1, seed=1))
    later = drawn(50, seed=2)
    assert np.allclose(cosines.of(later), Cosines(cosines.mean).of(later))
    assert np.mean(cosines.of(later)) > 0.4 > -0.4 > np.mean(cosines.of(drawn(50, towards=-2.0)))


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
    cosines = Cosines(mean)
    cosines.of([np.ones(4)] * LEARNED)
    odd = [np.zeros(4), np.full(4, np.nan), np.ones(2), np.ones((1, 4)), []]
    assert [1.0] == cosines.of([np.ones(4), *odd])

"""Components of embeddings: the same for ever, independent of length, and sensitive to direction."""

# ruff: noqa: D103 - a test's name states its rule

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.metrics import variables
from gateway.metrics.embeddings import Floats, Projected, components, vectors_of


def drawn(number: int, size: int = 384, seed: int = 0) -> Floats:
    return np.random.default_rng(seed).normal(size=(number, size)).astype(np.float32)


def counted(vectors: Floats) -> list[list[float]]:
    found: list[list[float]] = [[] for _ in variables.EMBEDDING]
    projected = Projected(lambda number, values: found[number].extend(values))
    projected.see(list(vectors))
    projected.flush()
    return found


def test_components_are_about_as_large_as_normal_random_numbers() -> None:
    found = components(drawn(5000))
    assert (5000, len(variables.EMBEDDING)) == found.shape
    assert np.abs(found.mean(axis=0)).max() < 0.1
    assert np.abs(found.std(axis=0) - 1).max() < 0.1
    assert np.abs(np.corrcoef(found.T) - np.eye(found.shape[1])).max() < 0.2


def test_components_are_the_same_in_every_process_and_version() -> None:
    """A reference that was captured once stays comparable: these numbers must never change."""
    found = components(np.eye(8)[:2].astype(np.float32))
    assert [[-1.0, 1.0, -1.0, 1.0], [-1.0, -1.0, -1.0, -1.0]] == found.tolist()


def test_length_does_not_count_and_direction_does() -> None:
    vectors = drawn(10)
    assert np.allclose(components(vectors), components(vectors * 7), atol=1e-5)
    moved = components(drawn(2000) + 0.2 * drawn(1, seed=9))
    assert np.abs(moved.mean(axis=0)).max() > 0.1


@given(st.lists(st.integers(0, 5), max_size=40), st.integers(1, 3))
def test_what_workers_count_adds_up_to_what_one_would_have_counted(rows: list[int], number: int) -> None:
    vectors = drawn(6, 16)[rows] if rows else np.zeros((0, 16), dtype=np.float32)
    whole = counted(vectors)
    parts = [counted(vectors[i::number]) for i in range(number)]
    for component, values in enumerate(whole):
        assert np.allclose(sorted(values), sorted(v for part in parts for v in part[component]), atol=1e-6)


@pytest.mark.parametrize(
    ("answer", "number"),
    [
        ({"embedding": np.ones(3)}, 1), ({"embeddings": np.ones((2, 3))}, 2), ({"embeddings": [[1.0], [2.0]]}, 2),
        ({"label": "GOOD"}, 0), (b"bytes", 0), (None, 0), ({"embeddings": "no"}, 0), ({"embeddings": np.ones(3)}, 0),
    ],
)  # fmt: skip
def test_vectors_are_found_in_answers_of_embedding_tasks_only(answer: object, number: int) -> None:
    assert number == len(vectors_of(answer))


def test_vectors_that_cannot_be_compared_are_skipped() -> None:
    """Zero vectors, vectors that are not finite, and truncated ones."""
    found: list[float] = []
    projected = Projected(lambda number, values: found.extend(values))
    projected.see([np.ones(4), np.zeros(4), np.full(4, np.nan), np.ones(2), np.ones((1, 4)), []])
    projected.flush()
    assert len(variables.EMBEDDING) == len(found)

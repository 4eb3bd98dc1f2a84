"""Comparison of two embedding models by nearest neighbours, on random vectors with a known answer."""

from __future__ import annotations

import numpy as np
import pytest

from gateway.handlers.neighbours import KEPT, LEAST, Array, Neighbours

RNG = np.random.default_rng(5)
TEXTS = 600
BASE = RNG.normal(size=(TEXTS, 48)).astype(np.float32)


def shares(first: Array, second: Array) -> float:
    """Return the share of texts that disagree."""
    pair = Neighbours()
    found = [pair.compare(a[None], b[None]) for a, b in zip(first, second, strict=True)]
    known = [agrees for agrees in found if agrees is not None]
    assert len(found) - LEAST <= len(known) + 1
    return 1 - sum(known) / len(known)


def test_a_rotated_scaled_or_wider_space_agrees() -> None:
    """The numbers differ, but the nearest neighbours are the same."""
    turned, _ = np.linalg.qr(RNG.normal(size=(48, 48)))
    wider = np.concatenate([BASE @ turned, np.zeros((TEXTS, 16))], axis=1) * 7
    assert 0 == shares(BASE, BASE)
    assert shares(BASE, wider.astype(np.float32)) < 0.01
    assert shares(BASE, BASE + RNG.normal(size=BASE.shape).astype(np.float32) * 0.02) < 0.02


@pytest.mark.parametrize(
    "second",
    [BASE[RNG.permutation(TEXTS)], np.ones_like(BASE), np.zeros_like(BASE), np.full_like(BASE, np.nan),
     RNG.normal(size=BASE.shape).astype(np.float32)],
    ids=["other texts'", "always one", "zeros", "not a number", "noise"],
)  # fmt: skip
def test_a_model_with_unrelated_vectors_mostly_disagrees(second: Array) -> None:
    """By chance, a tenth agrees."""
    assert shares(BASE, second) > 0.8


def test_frequent_texts_are_kept_once_and_agree() -> None:
    """Otherwise the comparison would know only a few different texts."""
    pair = Neighbours()
    for vector in BASE[: KEPT - 1]:
        pair.compare(vector[None], vector[None])
    again = [pair.compare(BASE[:1], BASE[:1]) for _ in range(3 * KEPT)]
    assert all(again)
    assert KEPT - 1 == len(pair._first)


def test_several_texts_agree_if_each_of_them_does_and_other_dimensions_are_skipped() -> None:
    """Callers may ask for shorter vectors; these are skipped. If only such vectors arrive, the model has changed."""
    pair = Neighbours()
    for vector in BASE[:KEPT]:
        pair.compare(vector[None], vector[None])
    assert pair.compare(BASE[:3], BASE[:3]) is True
    assert pair.compare(BASE[:3], BASE[[0, 1, 9]]) is False
    assert pair.compare(BASE[:3], BASE[:2]) is False
    assert {None} == {pair.compare(BASE[n : n + 1], BASE[n : n + 1, :8]) for n in range(LEAST - 1)}
    assert pair.compare(BASE[:1], BASE[:1]) is True
    short = [pair.compare(BASE[n : n + 1], BASE[n : n + 1, :8]) for n in range(3 * LEAST)]
    assert None not in short[2 * LEAST :]

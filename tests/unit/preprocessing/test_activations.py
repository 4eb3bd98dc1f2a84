from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from preprocessing.activations import l2_normalize, pool, sigmoid, softmax

LOGITS = hnp.arrays(
    np.float32,
    hnp.array_shapes(min_dims=2, max_dims=2),
    elements=st.floats(width=32, allow_nan=False, allow_infinity=False),
)
TOKENS = np.array([[[1, 5], [3, -4], [8, 0]], [[2, 2], [9, 9], [7, 7]]], dtype=np.float32)


@given(LOGITS)
def test_scores_are_finite_for_any_logits(logits: np.ndarray) -> None:
    """Softmax sums to 1; sigmoid(-x) is 1 - sigmoid(x); nothing overflows."""
    shares, result = softmax(logits), sigmoid(logits)
    assert np.isfinite(shares).all()
    np.testing.assert_allclose(shares.sum(axis=-1), 1, atol=1e-5)
    assert ((result >= 0) & (result <= 1)).all()
    np.testing.assert_allclose(sigmoid(-logits), 1 - result, atol=1e-6)


def test_a_vector_alone_is_normalized_as_among_others() -> None:
    """Zero stays zero; also one that is too short, and one whose square overflows, as torch.nn.functional.normalize."""
    vectors = np.random.default_rng(1).normal(size=(6, 384)).astype(np.float32)
    vectors[2], vectors[3], vectors[4] = 1e-15, 3e30, 0
    with np.errstate(over="ignore"):
        together, alone = l2_normalize(vectors), np.concatenate([l2_normalize(one[None]) for one in vectors])
    np.testing.assert_allclose(alone, together, atol=1e-7)
    np.testing.assert_allclose(np.linalg.norm(together, axis=1)[[0, 1, 4, 5]], [1, 1, 0, 1], rtol=1e-5)


MODES = {
    "cls": [[1, 5], [2, 2]], "mean": [[2, 0.5], [2, 2]], "max": [[3, 5], [2, 2]], "lasttoken": [[3, -4], [2, 2]],
    "mean_sqrt_len": [[4 / 2**0.5, 1 / 2**0.5], [2, 2]], "weightedmean": [[7 / 3, -1], [2, 2]],
}  # fmt: skip


@pytest.mark.parametrize("mode", MODES)
def test_pooling_uses_only_a_rows_own_tokens(mode: Any) -> None:
    """Rows of two and one tokens in a tensor of width three; of any float type in single precision."""
    for dtype in (np.float16, np.float32, np.float64):
        found = pool(TOKENS.astype(dtype), [2, 1], [mode])
        np.testing.assert_allclose(found, MODES[mode], rtol=1e-6)
        results = [found, *(one(TOKENS[0].astype(dtype)) for one in (softmax, sigmoid, l2_normalize))]
        assert {np.dtype(np.float32)} == {one.dtype for one in results}


@given(
    hnp.arrays(np.float32, (3, 4), elements=st.floats(-100, 100, width=32)),
    st.integers(0, 5),
    st.floats(width=32),
    st.sampled_from([*MODES]),
)
def test_pooling_does_not_depend_on_padding(row: np.ndarray, width: int, garbage: float, mode: Any) -> None:
    """The result has the same bits alone and in a wider batch, even if the backend writes NaN into padding."""
    padding = np.full((width, 4), garbage, np.float32)
    alone = pool(row[None], [3], [mode])
    assert alone.tobytes() == pool(np.concatenate([row, padding])[None], [3], [mode]).tobytes()
    assert alone.tobytes() == pool(np.concatenate([padding, row])[None], [3], [mode], padding_side="left").tobytes()


def test_a_prompt_is_left_out_of_pooling() -> None:
    """The weights of the other tokens stay. A row that is only a prompt keeps its last token."""
    tokens = np.arange(1, 9, dtype=np.float32).reshape(1, 4, 2)
    for side, left in (("right", 3), ("left", 2)):
        own = tokens[0][:left] if side == "right" else tokens[0][4 - left :]
        pooled = pool(tokens, [left], ("mean", "cls", "weightedmean"), padding_side=side, skip=left - 2)  # type: ignore[arg-type]
        kept = own[left - 2 :]
        weights = np.arange(left - 1, left + 1, dtype=np.float32)
        expected = np.concatenate([kept.mean(0), kept[0], weights @ kept / weights.sum()])
        np.testing.assert_allclose(pooled[0], expected, rtol=1e-6)
    assert tokens[0, 1].tolist() == pool(tokens, [2], ("max",), skip=9)[0].tolist()

"""The gate's numbers, on values small enough to check by hand."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from deploy.bundles.judge.parity import EXACT, REDUCED, Parity, cosine, excesses, neighbours, read, tolerance_for
from preprocessing.config import TaskConfig
from preprocessing.types import Encoded, ParsedRequest, Prepared

GOOD = Parity("c", 10, max_difference=1e-6, mean_cosine=1.0, min_cosine=1.0, decisions=1.0, neighbours=1.0)


def test_equal_vectors_have_cosine_one_and_a_single_number_is_no_direction():
    """Two logits of one sign are not the same: 1 and 3 differ."""
    assert cosine(np.array([1.0, 2.0]), np.array([2.0, 4.0])) == pytest.approx(1.0)
    assert cosine(np.array([1.0]), np.array([3.0])) < 0.95


def test_neighbours_count_whose_nearest_stays():
    """Of four on a line, moving one changes its own neighbour."""
    true = [np.array(v, dtype=float) for v in ([1, 0], [1, 0.1], [0, 1], [0.1, 1])]
    moved = [*true[:3], np.array([1, 0.11])]
    assert 1.0 == neighbours(true, true)
    assert neighbours(true, moved) < 1.0


@pytest.mark.parametrize(
    ("change", "allowed", "says"),
    [
        ({"max_difference": 2e-4}, {}, "largest difference 2.0e-04"),
        ({"mean_cosine": 0.99}, {}, "mean cosine 0.99000"),
        ({"decisions": 0.9}, {}, "10.0% of the answers changed"),
        ({"neighbours": 0.5}, {}, "50.0% of the nearest neighbours changed"),
        ({"max_difference": float("nan")}, {}, "largest difference nan"),
        ({"decisions": 0.98998}, {"decisions": 0.99}, "1.002% of the answers changed (at most 1.000%)"),
    ],
)
def test_each_excess_says_how_much_and_what_is_allowed(change, allowed, says):
    """Also where the number is not a number. `1.0% changed (at most 1.0%)` would be no reason."""
    assert [] == excesses(GOOD, EXACT)
    assert (EXACT, REDUCED) == (tolerance_for("fp32"), tolerance_for("bf16"))
    (line,) = excesses(replace(GOOD, **change), replace(EXACT, **allowed))
    assert line.startswith(says)


@pytest.mark.parametrize(
    ("side", "kept"), [("right", [0, 1, 2, 3, 4]), ("left", [0, 1, 2, 4, 5])], ids=["right", "left"]
)
def test_padding_of_a_text_of_several_rows_is_not_compared(side, kept):
    """Rows of 3 and 2 tokens: six places, five of them read; an output without tokens is read whole."""
    rows = [Encoded(np.arange(3)), Encoded(np.arange(2))]
    prepared = Prepared(rows, ParsedRequest(["text"], is_batch=False))
    outputs = {"start_logits": np.arange(6.0).reshape(2, 3), "other": np.ones((2, 1))}
    found = read(outputs, prepared, TaskConfig(task="question-answering", padding_side=side))
    assert kept == found["start_logits"].tolist()
    assert (2, 1) == found["other"].shape
    # one number per label: as many labels as tokens are no tokens
    whole = read(outputs, prepared, TaskConfig(task="text-classification", padding_side=side))
    assert (2, 3) == whole["start_logits"].shape

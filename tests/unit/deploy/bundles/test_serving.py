"""How the tensors of an export are described to the stock tool."""

from __future__ import annotations

import numpy as np
import pytest

from deploy.bundles.serving import tensors


@pytest.mark.parametrize(
    ("shapes", "expected"),
    [
        ([(1, 21), (1, 5)], (-1, -1)),  # question answering: a number per token
        ([(1, 2), (1, 2)], (-1, 2)),  # labels
        ([(1, 21), (1, 21)], (-1, 21)),  # as many labels as the first text has tokens
        ([(1, 21, 3), (1, 5, 3)], (-1, -1, 3)),
        ([(1, 21, 3)], (-1, -1, 3)),
        ([(1, 21, 21), (1, 5, 21)], (-1, -1, 21)),  # as many values per token as tokens
    ],
)
def test_sizes_that_follow_the_length_of_a_text_are_dynamic(
    shapes: list[tuple[int, ...]], expected: tuple[int, ...]
) -> None:
    """A size that is the same for all texts is the model's own."""
    feeds = {"input_ids": np.zeros((1, 21), np.int64)}
    inputs, outputs = tensors(feeds, [{"logits": np.zeros(shape, np.float32)} for shape in shapes])
    assert [("input_ids", "int64", (-1, -1))] == [(one.name, one.type, tuple(one.shape)) for one in inputs]
    assert [("logits", "float32", expected)] == [(one.name, one.type, tuple(one.shape)) for one in outputs]

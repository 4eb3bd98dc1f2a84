from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from preprocessing.collate import collate, padded_tokens, split_rows
from preprocessing.errors import InvalidOutput
from preprocessing.types import Encoded

IDS = st.lists(st.integers(1, 30_000), min_size=1, max_size=12)
ROWS = st.lists(st.tuples(IDS, st.booleans()), min_size=1, max_size=8)


def encoded(ids: list[int], *, pair: bool = False) -> Encoded:
    """Return a row of these ids. In a pair, the types are the ids' parities."""
    array = np.array(ids, dtype=np.int64)
    return Encoded(array, array % 2 if pair else None)


@given(ROWS, st.sampled_from(["left", "right"]), st.sampled_from(["int32", "int64"]))
def test_rows_survive_collation(rows: list[tuple[list[int], bool]], side: str, dtype: str) -> None:
    """The tensor's values at a mask of 1 are the row's ids and types, for any padding."""
    tensors = collate(
        [encoded(ids, pair=pair) for ids, pair in rows],
        pad_id=9,
        pad_type_id=7,
        padding_side=side,
        dtypes={"input_ids": dtype},
    )
    assert (np.dtype(dtype), np.int64) == (tensors["input_ids"].dtype, tensors["attention_mask"].dtype)
    assert tensors["input_ids"].size == padded_tokens([encoded(ids) for ids, _ in rows]), "which the batcher limits"
    mask = tensors["attention_mask"].astype(bool)
    assert [ids for ids, _ in rows] == [row[own].tolist() for row, own in zip(tensors["input_ids"], mask, strict=True)]
    types = [[i % 2 if pair else 0 for i in ids] for ids, pair in rows]
    assert types == [row[own].tolist() for row, own in zip(tensors["token_type_ids"], mask, strict=True)]
    assert (tensors["input_ids"][~mask] == 9).all()
    assert (np.sort(mask)[:, :: 1 if side == "left" else -1] == mask).all(), "padding is on that side, and there alone"
    assert (tensors["token_type_ids"][~mask] == 7).all() or all(not pair for _, pair in rows)


@given(st.lists(ROWS, min_size=1, max_size=5))
def test_split_gives_every_request_its_own_rows(requests: list[list[tuple[list[int], bool]]]) -> None:
    """Rows of several requests are collated together; each gets the outputs that it would get alone."""
    rows = [[encoded(ids) for ids, _ in request] for request in requests]
    tensors = collate([row for request in rows for row in request])
    parts = split_rows(tensors, [len(request) for request in rows])
    for part, request in zip(parts, rows, strict=True):
        alone = collate(request)["input_ids"]
        assert alone.tolist() == part["input_ids"][:, : alone.shape[1]].tolist()
        assert set(tensors) == set(part)
        assert np.shares_memory(tensors["input_ids"], part["input_ids"]), "outputs have megabytes"


@pytest.mark.parametrize("shape", [(), (3,), (5, 2), (0, 2)])
def test_outputs_of_another_row_count_are_refused(shape: tuple[int, ...]) -> None:
    """A client must never get another client's row."""
    with pytest.raises(InvalidOutput, match="4 rows were sent"):
        split_rows({"logits": np.zeros(shape, np.float32)}, [1, 3])

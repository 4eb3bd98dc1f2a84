"""Rows to one padded tensor per input, and a batch's outputs back to rows. Pure: values in, values out; no loop over
tokens anywhere.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import DTypeLike, NDArray

from preprocessing.config import Side
from preprocessing.errors import InvalidOutput
from preprocessing.types import Encoded, Tensors

INPUT_NAMES: Final = ("input_ids", "attention_mask", "token_type_ids")
"""The inputs that can be made from encoded text; a model that needs another cannot be fed by this package."""

_NO_DTYPES: Final[Mapping[str, DTypeLike]] = {}


def collate(
    rows: Sequence[Encoded],
    *,
    pad_id: int = 0,
    pad_type_id: int = 0,
    padding_side: Side = "right",
    input_names: Sequence[str] = INPUT_NAMES,
    dtypes: Mapping[str, DTypeLike] = _NO_DTYPES,
    pad_to_multiple_of: int | None = None,
) -> dict[str, NDArray[Any]]:
    """Tensors of shape [rows, longest], one per wanted input in the wanted type (int64 unless said); `rows` must not be
    empty.
    """
    if not rows:
        raise ValueError("collate needs at least one row")
    lengths = [len(row.ids) for row in rows]
    shape = (len(rows), _rounded_up(max(lengths), pad_to_multiple_of))
    # Rows of one length, a lone row above all, need no mask: half the time of the general case.
    filled = None if min(lengths) == shape[1] else _filled(lengths, shape[1], padding_side)
    tensors: dict[str, NDArray[Any]] = {}
    for name in input_names:
        dtype = np.dtype(dtypes.get(name, np.int64))
        if name == "input_ids":
            tensors[name] = _padded([row.ids for row in rows], filled, shape, pad_id, dtype)
        elif name == "attention_mask":
            tensors[name] = np.ones(shape, dtype) if filled is None else filled.astype(dtype)
        elif name != "token_type_ids":
            raise ValueError(f"collate cannot make the input {name!r}; it makes {', '.join(INPUT_NAMES)}")
        elif pad_type_id == 0 and all(row.type_ids is None for row in rows):
            tensors[name] = np.zeros(shape, dtype)
        else:
            tensors[name] = _padded([_type_ids(row) for row in rows], filled, shape, pad_type_id, dtype)
    return tensors


def padded_tokens(rows: Sequence[Encoded]) -> int:
    """What the rows cost as one batch: the longest times their number."""
    return max((len(row.ids) for row in rows), default=0) * len(rows)


def split_rows(outputs: Tensors, counts: Sequence[int]) -> list[dict[str, NDArray[Any]]]:
    """The outputs of a batch cut into consecutive groups of `counts` rows; views, nothing is copied."""
    total = sum(counts)
    for name, tensor in outputs.items():
        if tensor.ndim == 0 or len(tensor) != total:
            raise InvalidOutput(
                f"Output {name} has shape {list(tensor.shape)}, but {total} rows were sent",
                hint="its first dimension must be the batch",
            )
    groups = []
    start = 0
    for count in counts:
        groups.append({name: tensor[start : start + count] for name, tensor in outputs.items()})
        start += count
    return groups


def _filled(lengths: Sequence[int], width: int, side: Side) -> NDArray[np.bool_]:
    """Where a [rows, width] tensor holds tokens rather than padding."""
    positions, column = np.arange(width), np.array(lengths)[:, None]
    result: NDArray[np.bool_] = positions < column if side == "right" else positions >= width - column
    return result


def _padded(
    parts: Sequence[NDArray[np.int64]],
    filled: NDArray[np.bool_] | None,
    shape: tuple[int, int],
    padding: int,
    dtype: np.dtype[Any],
) -> NDArray[Any]:
    tokens = np.concatenate(parts)
    if filled is None:
        return tokens.reshape(shape).astype(dtype, copy=False)
    tensor = np.full(shape, padding, dtype)
    tensor[filled] = tokens
    return tensor


def _type_ids(row: Encoded) -> NDArray[np.int64]:
    return np.zeros(len(row.ids), dtype=np.int64) if row.type_ids is None else row.type_ids


def _rounded_up(length: int, multiple: int | None) -> int:
    return length if not multiple else -(-length // multiple) * multiple

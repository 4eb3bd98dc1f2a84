"""Functions between a model's outputs and an answer, in numpy: any float type in, float32 out. Pure; no checks.

Pooling uses only a row's own tokens. Its result does not depend on the other rows of the batch, nor on what the backend
wrote into the padding.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from preprocessing.config import Side
from preprocessing.parameters import Pooling
from preprocessing.types import FloatArray

_EPSILON = 1e-12  # as in torch.nn.functional.normalize


def softmax(logits: NDArray[Any]) -> FloatArray:
    """Softmax over the last axis; finite for logits of any size."""
    x = logits.astype(np.float32, copy=False)
    with np.errstate(over="ignore"):  # opposite extremes differ by -inf, and exp(-inf) is 0
        exponentials = np.exp(x - x.max(axis=-1, keepdims=True))
    result: FloatArray = exponentials / exponentials.sum(axis=-1, keepdims=True)
    return result


def sigmoid(logits: NDArray[Any]) -> FloatArray:
    """Element-wise sigmoid; exp is only computed of negative numbers, so nothing overflows."""
    x = logits.astype(np.float32, copy=False)
    small: FloatArray = np.exp(-np.abs(x))
    numerator: FloatArray = np.where(x >= 0, np.float32(1), small)
    result: FloatArray = numerator / (1 + small)
    return result


def l2_normalize(vectors: NDArray[Any]) -> FloatArray:
    """L2 normalisation over the last axis; zero vectors stay zero."""
    x = vectors.astype(np.float32, copy=False)
    if x.ndim == 2 and len(x) == 1:  # most requests have one text, and `norm` takes longer for it than all else here
        one = x[0]
        return x / max(math.sqrt(one.dot(one)), _EPSILON)
    result: FloatArray = x / np.maximum(np.linalg.norm(x, axis=-1, keepdims=True), np.float32(_EPSILON))
    return result


def pool(
    tokens: NDArray[Any],
    lengths: Sequence[int],
    modes: Sequence[Pooling],
    *,
    padding_side: Side = "right",
    skip: int = 0,
) -> FloatArray:
    """Pool token vectors [rows, width, size] to [rows, size × modes]; `lengths` are the rows' real lengths, 1 to width.

    The first `skip` tokens of each row (a prompt) are left out, but never the last token.
    """
    width = tokens.shape[1]
    pooled = []
    for row, length in zip(tokens, lengths, strict=True):
        own = row[:length] if padding_side == "right" else row[width - length :]
        own = own.astype(np.float32, copy=False)
        pooled.append(
            np.concatenate([_pool_row(own, mode, skip) for mode in modes])
            if len(modes) != 1
            else _pool_row(own, modes[0], skip)
        )
    return np.stack(pooled)


def _pool_row(own: FloatArray, mode: Pooling, skip: int) -> FloatArray:
    result: FloatArray
    if skip:
        skip = min(skip, len(own) - 1)
        own = own[skip:]
    if mode == "mean":
        result = own.mean(axis=0)
    elif mode == "cls":
        result = own[0]
    elif mode == "max":
        result = own.max(axis=0)
    elif mode == "mean_sqrt_len":
        result = own.sum(axis=0) / np.sqrt(np.float32(len(own)))
    elif mode == "lasttoken":
        result = own[-1]
    else:  # weightedmean: later tokens weigh more
        weights = np.arange(skip + 1, skip + len(own) + 1, dtype=np.float32)
        result = weights @ own / weights.sum()
    return result

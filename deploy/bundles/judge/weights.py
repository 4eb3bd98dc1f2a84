"""Compares the weights in a graph with those of the loaded model, number by number.

Texts test a graph only with the tokens that they contain. A wrong row of a rare token, or one wrong number among
millions, shows only here. Exporters fold, transpose and rename weights, so no name is expected, and a weight may be
missing. A tensor with a weight's shape and most of its numbers, but not all, is that weight and wrong. Weights that are
folded beyond recognition are left to the comparison of answers.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from deploy.tools.errors import first_line

_LEAST: Final = 16
"""Tensors with fewer numbers agree by chance."""
_MOSTLY: Final = 0.5
"""Share of equal numbers from which a tensor counts as that weight."""


def faults(weights: Mapping[str, NDArray[Any]], graph: Path) -> list[str]:
    """Return the faults of the weights in ``graph``, one sentence each; empty if all recognisable ones equal
    ``weights``.
    """
    import onnx

    by_shape: dict[tuple[int, ...], dict[str, NDArray[Any]]] = defaultdict(dict)
    for name, weight in weights.items():
        if weight.size >= _LEAST:
            by_shape[tuple(sorted(weight.shape))][name] = weight
    try:
        tensors = list(_tensors(onnx.load(str(graph))))
    except Exception as error:  # noqa: BLE001 - protobuf's own, and whatever a damaged file leads to
        return [f"the weights of the graph cannot be read: {first_line(error)}"]
    found: list[str] = []
    for tensor in tensors:
        alike = by_shape.get(tuple(sorted(tensor.shape)), {})
        if not alike or any(_is_equal(weight, tensor) for weight in alike.values()):
            continue
        shares = {name: _agreement(weight, tensor) for name, weight in alike.items() if not _is_constant(weight)}
        name = max(shares, key=lambda n: shares[n], default="")
        if name and shares[name] >= _MOSTLY:
            wrong = min(int((alike[name] != value).sum()) for value in _ways(alike[name], tensor))
            found.append(f"the weight {name} is not the original's: {wrong} of {tensor.size} numbers differ")
    return found


def _is_equal(weight: NDArray[Any], tensor: NDArray[Any]) -> bool:
    return any(
        bool((weight[:2] == value[:2]).all()) and bool((weight == value).all()) for value in _ways(weight, tensor)
    )


def _agreement(weight: NDArray[Any], tensor: NDArray[Any]) -> float:
    """Return the share of equal numbers, whichever way the tensor is laid out.

    Only numbers other than zero count, since zeros agree by chance.
    """
    telling = weight != 0
    if telling.sum() < _LEAST:
        return 0.0
    return max((float((weight == value)[telling].mean()) for value in _ways(weight, tensor)), default=0.0)


def _ways(weight: NDArray[Any], tensor: NDArray[Any]) -> Iterator[NDArray[Any]]:
    if tensor.shape == weight.shape:
        yield tensor
    if weight.ndim == 2 and tensor.shape == weight.shape[::-1]:
        yield tensor.T


def _is_constant(weight: NDArray[Any]) -> bool:
    return bool((weight == weight.flat[0]).mean() > 0.5)


def _tensors(model: Any) -> Iterator[NDArray[Any]]:
    """Yield the graph's weights."""
    from onnx import numpy_helper

    stored = [numpy_helper.to_array(i) for i in model.graph.initializer]
    stored += [
        numpy_helper.to_array(node.attribute[0].t)
        for node in model.graph.node
        if node.op_type == "Constant" and node.attribute and node.attribute[0].name == "value"
    ]
    for value in stored:
        if value.dtype == np.float32 and value.size >= _LEAST:
            yield value

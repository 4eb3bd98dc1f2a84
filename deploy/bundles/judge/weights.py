"""Compares the weights in a graph with those of the loaded model, number by number.

Texts test a graph only with the tokens that they contain. A wrong row of a rare token, or one wrong number among
millions, shows only here. Exporters fold, transpose and rename weights, so no name is expected, and a weight may be
missing. A tensor with a weight's shape and most of its numbers, but not all, is that weight and wrong. Int8 tensors are
compared after applying their scales and the factors that a quantiser took out of them to smooth activations, within
half a step; one that is a weight times a number is wrong too. Weights that are folded beyond recognition are left to
the comparison of answers.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from deploy.tools.errors import first_line

_LEAST: Final = 16
"""Tensors with fewer numbers agree by chance."""
_MOSTLY: Final = 0.5
"""Share of equal numbers from which a tensor counts as that weight."""
_NEARLY: Final = 0.99
_STEPS: Final = 0.51
"""Largest distance, in steps, of a correct int8 number from its weight: a little more than half, for rounding on the
way.
"""


@dataclass(frozen=True, slots=True)
class _Stored:
    """A tensor of the graph as real numbers. ``step`` (its shape, or one number) is its rounding step, 0 for fp32."""

    value: NDArray[Any]
    step: NDArray[Any]


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
        alike = by_shape.get(tuple(sorted(tensor.value.shape)), {})
        if not alike or any(_is_equal(weight, tensor) for weight in alike.values()):
            continue
        shares = {name: _agreement(weight, tensor) for name, weight in alike.items() if not _is_constant(weight)}
        name = max(shares, key=lambda n: shares[n], default="")
        if name and shares[name] >= _MOSTLY:
            wrong = min(int((~_agrees(alike[name], value, step)).sum()) for value, step in _ways(alike[name], tensor))
            found.append(f"the weight {name} is not the original's: {wrong} of {tensor.value.size} numbers differ")
        elif tensor.step.any():
            scaled = ((n, _factor(alike[n], tensor)) for n in shares)
            found += [f"the weight {n} is multiplied by {factor:.2f}" for n, factor in scaled if factor][:1]
    return found


def _factor(weight: NDArray[Any], tensor: _Stored) -> float:
    """Return the one number by which a rounded tensor is the weight multiplied; 0 if there is none."""
    for value, step in _ways(weight, tensor):
        factor = float((value * weight).sum() / np.square(weight).sum())
        if factor and _agrees(weight * factor, value, 1.5 * step).mean() > _NEARLY:
            return factor
    return 0.0


def _is_equal(weight: NDArray[Any], tensor: _Stored) -> bool:
    return any(
        bool(_agrees(weight[:2], value[:2], step[:2]).all()) and bool(_agrees(weight, value, step).all())
        for value, step in _ways(weight, tensor)
    )


def _agreement(weight: NDArray[Any], tensor: _Stored) -> float:
    """Return the share of equal numbers, whichever way the tensor is laid out.

    Only numbers other than zero count, since zeros agree by chance; equal means within half a step.
    """
    best = 0.0
    for value, step in _ways(weight, tensor):
        telling = np.broadcast_to(np.abs(weight) > step * _STEPS, weight.shape)
        if telling.sum() >= _LEAST:
            best = max(best, float(_agrees(weight, value, step)[telling].mean()))
    return best


def _agrees(weight: NDArray[Any], value: NDArray[Any], step: NDArray[Any]) -> NDArray[np.bool_]:
    return np.asarray(np.abs(value - weight) <= step * _STEPS)


def _ways(weight: NDArray[Any], tensor: _Stored) -> Iterator[tuple[NDArray[Any], NDArray[Any]]]:
    step = np.broadcast_to(tensor.step, tensor.value.shape)
    if tensor.value.shape == weight.shape:
        yield tensor.value, step
    if weight.ndim == 2 and tensor.value.shape == weight.shape[::-1]:
        yield tensor.value.T, step.T


def _is_constant(weight: NDArray[Any]) -> bool:
    return bool((weight == weight.flat[0]).mean() > 0.5)


def _tensors(model: Any) -> Iterator[_Stored]:
    """Return the graph's weights as real numbers: fp32 unchanged, int8 with the scales stored next to them."""
    from onnx import numpy_helper

    raw = {i.name: numpy_helper.to_array(i) for i in model.graph.initializer}
    raw |= {
        node.output[0]: numpy_helper.to_array(node.attribute[0].t)
        for node in model.graph.node
        if node.op_type == "Constant" and node.attribute and node.attribute[0].name == "value"
    }
    for value in raw.values():
        if value.dtype == np.float32 and value.size >= _LEAST:
            yield _Stored(value, np.zeros((), np.float32))
    smoothed = dict(_smoothed(model, raw))
    for node in model.graph.node:
        if node.op_type == "DequantizeLinear" and node.input[0] in raw and node.input[1] in raw:
            axis = next((a.i for a in node.attribute if a.name == "axis"), 1)
            zero = raw.get(node.input[2]) if len(node.input) > 2 else None
            tensor = _real(raw[node.input[0]], raw[node.input[1]], zero, axis)
            factors = smoothed.get(node.output[0])
            if factors is not None and tensor.value.ndim == 2 and len(tensor.value) == factors.size:
                column = factors.reshape(-1, 1)
                tensor = _Stored(tensor.value * column, np.abs(tensor.step * column))
            yield tensor


def _smoothed(model: Any, raw: Mapping[str, NDArray[Any]]) -> Iterator[tuple[str, NDArray[Any]]]:
    """Yield the right side of every product whose left side is multiplied by a vector before rounding, and the vector.

    The quantiser took that vector out of the weight.
    """
    makers = {name: node for node in model.graph.node for name in node.output}
    for node in model.graph.node:
        if node.op_type != "MatMul":
            continue
        maker = makers.get(node.input[0])
        while maker is not None and maker.op_type in ("DequantizeLinear", "QuantizeLinear"):
            maker = makers.get(maker.input[0])
        if maker is not None and maker.op_type == "Mul":
            factors = next((raw[name] for name in maker.input if name in raw), None)
            if factors is not None and factors.size > 1:
                yield node.input[1], factors.astype(np.float32)


def _real(value: NDArray[Any], scale: NDArray[Any], zero: NDArray[Any] | None, axis: int) -> _Stored:
    def along(numbers: NDArray[Any]) -> NDArray[Any]:
        shape = [1] * value.ndim
        if numbers.size > 1:
            shape[axis] = numbers.size
        return numbers.astype(np.float32).reshape(shape)

    step = along(scale)
    return _Stored((value.astype(np.float32) - (along(zero) if zero is not None else 0)) * step, step)

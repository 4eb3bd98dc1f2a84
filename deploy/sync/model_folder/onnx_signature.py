"""Reads names, types and dimensions of an ONNX file's inputs and outputs without loading its weights.

Model sync calls it to write config.pbtxt. It reads protobuf's wire format from a memory map: the images that run model
sync contain neither ``onnx`` nor ONNX Runtime, and both would read hundreds of megabytes of weights to find a few
names. Lengths found in the file are checked, never trusted.
"""

from __future__ import annotations

import mmap
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from deploy.sync.errors import BadModel

DTYPES = {
    1: "FP32", 2: "UINT8", 3: "INT8", 4: "UINT16", 5: "INT16", 6: "INT32", 7: "INT64", 8: "STRING", 9: "BOOL",
    10: "FP16", 11: "FP64", 12: "UINT32", 13: "UINT64", 16: "BF16",
}  # fmt: skip
"""onnx.TensorProto.DataType → Triton's names (without ``TYPE_``)."""


@dataclass(frozen=True, slots=True)
class GraphTensor:
    """One input or output of the graph. A dimension is a size, a symbol, or None if it is dynamic without a name."""

    name: str
    dtype: str
    dims: tuple[int | str | None, ...]
    has_shape: bool = True
    """Whether the graph states its shape. If so, a tensor without dimensions is one number: [1] in Triton."""


@dataclass(frozen=True, slots=True)
class OnnxSignature:
    """Inputs and outputs of a graph. ``external_files`` hold its weights and must be next to the model file."""

    inputs: tuple[GraphTensor, ...]
    outputs: tuple[GraphTensor, ...]
    external_files: tuple[str, ...] = ()


def onnx_signature(path: Path) -> OnnxSignature:
    """Read the signature of an ONNX file. Raises ``BadModel`` if it is not an ONNX file."""
    try:
        with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            graphs = [(start, end) for number, start, end in _fields(data, 0, len(data)) if number == 7]
            if len(graphs) != 1:
                raise ValueError("it has no graph")
            return _graph(data, *graphs[0])
    except (ValueError, IndexError, UnicodeDecodeError) as error:
        raise BadModel(f"{path.name} is not a readable ONNX model: {error}", hint="export it again") from error


def _graph(data: mmap.mmap, start: int, end: int) -> OnnxSignature:
    inputs: list[GraphTensor] = []
    outputs: list[GraphTensor] = []
    weights: set[str] = set()
    external: set[str] = set()
    for number, first, last in _fields(data, start, end):
        if number == 5:  # an initializer: its name, and the file that holds its bytes if they are external
            for inner, a, b in _fields(data, first, last):
                if inner == 8:
                    weights.add(data[a:b].decode())
                elif inner == 13:
                    pair = {n: data[c:d].decode() for n, c, d in _fields(data, a, b)}
                    if pair.get(1) == "location":
                        external.add(pair.get(2, ""))
        elif number == 11:
            inputs.append(_value(data, first, last))
        elif number == 12:
            outputs.append(_value(data, first, last))
    # Old exporters list weights among the inputs. Those have a value, so callers do not send them.
    needed = tuple(t for t in inputs if t.name not in weights)
    return OnnxSignature(needed, tuple(outputs), tuple(sorted(external)))


def _value(data: mmap.mmap, start: int, end: int) -> GraphTensor:
    name, dtype = "", ""
    dims: list[int | str | None] = []
    has_shape = False
    for number, first, last in _fields(data, start, end):
        if number == 1:
            name = data[first:last].decode()
        elif number == 2:
            for kind, a, b in _fields(data, first, last):
                if kind != 1:  # TypeProto.tensor_type; Triton has no sequences, maps or optionals
                    continue
                for inner, c, d in _fields(data, a, b):
                    if inner == 1:
                        dtype = DTYPES.get(c, f"onnx type {c}")
                    elif inner == 2:
                        dims, has_shape = [_dim(data, e, f) for n, e, f in _fields(data, c, d) if n == 1], True
    if not dtype:
        raise ValueError(f"{name!r} is not a tensor")
    return GraphTensor(name, dtype, tuple(dims), has_shape)


def _dim(data: mmap.mmap, start: int, end: int) -> int | str | None:
    for number, first, last in _fields(data, start, end):
        if number == 1:
            return first if first < 1 << 63 else None
        if number == 2:
            return data[first:last].decode() or None
    return None


def _fields(data: mmap.mmap, start: int, end: int) -> Iterator[tuple[int, int, int]]:
    """Yield ``(field number, start, end)`` of each field; for a number, ``start`` is its value."""
    at = start
    while at < end:
        key, at = _varint(data, at, end)
        number, wire = key >> 3, key & 7
        if wire == 0:
            value, at = _varint(data, at, end)
            yield number, value, at
        elif wire == 2:
            length, at = _varint(data, at, end)
            if at + length > end:
                raise ValueError("it is cut short")
            yield number, at, at + length
            at += length
        elif wire in (1, 5):
            at += 8 if wire == 1 else 4
        else:
            raise ValueError("it is not protobuf")
        if number == 0:
            raise ValueError("it is not protobuf")


def _varint(data: mmap.mmap, at: int, end: int) -> tuple[int, int]:
    value = shift = 0
    while at < end and shift < 70:
        byte = data[at]
        value |= (byte & 0x7F) << shift
        at += 1
        if byte < 0x80:
            return value, at
        shift += 7
    raise ValueError("it is cut short")

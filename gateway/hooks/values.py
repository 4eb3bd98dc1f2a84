"""Encodes values as bytes that are safe to decode: JSON for the structure, raw memory for arrays and bytes.

Gateways and hook processes use it in both directions. A gateway does not trust what a hook process sends: it checks
every length, type and shape before it reads memory, and decoding never runs code.

An encoded value is a head (kind, number of buffers, lengths), its JSON, and its buffers, each at a multiple of 64
bytes. Kind ``JSON`` is a value that JSON represents exactly, ``BYTES`` is bytes. In a ``TREE``, a list is a list, and
an object with one key stands for a type that JSON does not have::

    {"dict": {name: node}}   {"tuple": [...]}   {"float": "nan"}   {"bytes": number of its buffer}
    {"array": [number of its buffer, dtype, shape]}   {"scalar": [number of its buffer, dtype]}
    {"objects": [shape, nodes]}
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, TypeAlias

import numpy as np
import orjson
from numpy.typing import NDArray

Buffer: TypeAlias = bytes | bytearray | memoryview

_HEAD: Final = struct.Struct("<BxxxI")
_JSON: Final = 1
_TREE: Final = 2
_BYTES: Final = 3
_ALIGNED: Final = 64

_MAX_JSON: Final = 64 << 20
"""The most bytes of a value's JSON."""
_MAX_BUFFERS: Final = 1 << 16
_MAX_DEPTH: Final = 100
_MAX_DIMENSIONS: Final = 32
_LAST_CHARACTER: Final = 0x10FFFF

_DTYPES: Final = {
    name: np.dtype(name) for name in (
        "bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64",
        "float16", "float32", "float64", "complex64", "complex128",
    )
}  # fmt: skip
_NAMES: Final = {dtype: name for name, dtype in _DTYPES.items()}


class NotAValue(ValueError):
    """The bytes are not a value that ``encode`` has written."""


def encode(value: object, *, is_exact: bool = False) -> list[Buffer]:
    """Return ``value`` as pieces to be written one after the other, without copying the memory of arrays.

    Accepts plain scalars, ``bytes``, lists, tuples, mappings with text keys, and numpy arrays and scalars. Unless
    ``is_exact``, it converts similar types to these: subclasses, sets, other keys, objects with ``__array__`` (torch
    tensors), and arrays of objects (to lists). Raises ``TypeError`` with a reason for other types.
    """
    if type(value) is bytes:
        return _pieces(_BYTES, value, [])
    writer = _Writer(is_exact=is_exact)
    tree = writer.node(value, 0)
    kind, chosen = (_TREE, tree) if writer.is_special else (_JSON, value)
    text = orjson.dumps(chosen)
    if len(text) > _MAX_JSON:
        raise TypeError(f"it has {len(text) >> 20} MiB without its arrays, at most {_MAX_JSON >> 20}: use arrays")
    return _pieces(kind, text, writer.buffers)


def encode_body(body: object) -> tuple[str, list[Buffer]]:
    """Return the form of a body (``json``, ``bytes`` or ``value``) and its pieces. Raises ``TypeError``.

    A body that was read from JSON is written as JSON again, which needs no check of every item.
    """
    if type(body) is bytes:
        return "bytes", [body]
    try:
        return "json", [orjson.dumps(body, option=_NO_CONVERSION)]
    except TypeError:  # not from JSON: tensors of a binary protocol
        return "value", encode(body)


def decode_body(kind: str, payload: Buffer) -> Any:
    """Read a body that ``encode_body`` has written, from a trusted sender."""
    if kind == "json":
        return orjson.loads(payload)
    return bytes(payload) if kind == "bytes" else decode(payload)


_NO_CONVERSION: Final = (
    orjson.OPT_PASSTHROUGH_DATACLASS | orjson.OPT_PASSTHROUGH_DATETIME | orjson.OPT_PASSTHROUGH_SUBCLASS
)


def decode(payload: Buffer) -> Any:
    """Read a value that ``encode`` has written. Arrays are views of the payload. Raises ``NotAValue``."""
    try:
        return _decode(memoryview(payload))
    except NotAValue:
        raise
    except (ValueError, TypeError, KeyError, IndexError, OverflowError, RecursionError, struct.error) as error:
        raise NotAValue(f"{type(error).__name__}: {error}") from error


def total(pieces: Sequence[Buffer]) -> int:
    """Return the number of bytes of all pieces."""
    return sum(map(size_of, pieces))


def size_of(piece: Buffer) -> int:
    """Return the number of bytes of a piece."""
    return piece.nbytes if isinstance(piece, memoryview) else len(piece)


# --- writing ----------------------------------------------------------------------------------------------------------


def _pieces(kind: int, main: Buffer, buffers: Sequence[Buffer]) -> list[Buffer]:
    lengths = [len(main), *map(size_of, buffers)]
    head = _HEAD.pack(kind, len(buffers)) + struct.pack(f"<{len(lengths)}Q", *lengths)
    pieces: list[Buffer] = []
    # Arrays that are not aligned to their item size are slow to read. The padding also aligns the next value.
    for piece, length in zip((head, main, *buffers), (len(head), *lengths), strict=True):
        pieces.append(piece)
        if padding := -length % _ALIGNED:
            pieces.append(b"\0" * padding)
    return pieces


class _Writer:
    """Converts one value to its tree. ``is_special``: the value has a part that JSON cannot represent."""

    def __init__(self, *, is_exact: bool) -> None:
        self.buffers: list[Buffer] = []
        self.is_special = False
        self._is_exact = is_exact
        self._inside: set[int] = set()

    def node(self, value: Any, depth: int) -> object:
        kind = type(value)
        if kind is str or kind is bool or value is None:
            return value
        if kind is float:
            return value if math.isfinite(value) else self._special("float", repr(value))
        if kind is int and -(1 << 63) <= value < 1 << 64:
            return value
        if kind is list or kind is tuple or (kind is dict and all(type(key) is str for key in value)):
            return self._container(kind, value, depth)
        if kind is bytes:
            return self._special("bytes", self._buffer(value))
        if kind is np.ndarray:
            return self._array(value)
        if isinstance(value, np.generic) and value.dtype in _NAMES:
            return self._special("scalar", [self._buffer(_raw(np.asarray(value))), _NAMES[value.dtype]])
        if self._is_exact:
            raise TypeError(f"{kind.__name__} is not a plain value")
        return self._converted(value, depth)

    def _container(self, kind: type, value: Any, depth: int) -> object:
        if depth > _MAX_DEPTH:
            raise TypeError(f"it is nested deeper than {_MAX_DEPTH} levels")
        if id(value) in self._inside:
            raise TypeError(f"a {kind.__name__} in it contains itself")
        self._inside.add(id(value))
        try:
            deeper = depth + 1
            if kind is dict:
                return {"dict": {key: self.node(item, deeper) for key, item in value.items()}}
            nodes = [self.node(item, deeper) for item in value]
            return nodes if kind is list else self._special("tuple", nodes)
        finally:
            self._inside.discard(id(value))

    def _converted(self, value: Any, depth: int) -> object:
        self.is_special = True  # orjson might write the original value differently
        if type(value) is int:
            raise TypeError("a whole number in it has more than 64 bits")
        for base in (int, float, str, bytes):
            if isinstance(value, base):
                return self.node(base(value), depth)  # type: ignore[arg-type] # it is one of them
        if isinstance(value, Mapping):
            return self.node({str(key): item for key, item in value.items()}, depth)
        if isinstance(value, list | tuple | set | frozenset):
            return self.node(tuple(value) if isinstance(value, tuple) else list(value), depth)
        if isinstance(value, bytearray | memoryview):
            return self.node(bytes(value), depth)
        if not isinstance(value, np.ndarray | np.generic) and not hasattr(value, "__array__"):
            raise TypeError(f"{type(value).__name__} is neither numbers, text, an array nor a list of them")
        array = np.asarray(value)
        if array.dtype.hasobject:
            return self.node(array.tolist(), depth + 1)
        return self._array(array)

    def _array(self, array: NDArray[Any]) -> object:
        dtype = array.dtype
        if dtype.kind == "O":
            if self._is_exact:
                return self._special("objects", [list(array.shape), [self.node(i, 1) for i in array.ravel().tolist()]])
            self.is_special = True
            return self.node(array.tolist(), 1)
        name = _NAMES.get(dtype)
        if name is None and dtype.kind in "SU" and dtype.isnative and dtype.itemsize:
            name = f"{dtype.kind}{dtype.itemsize // (4 if dtype.kind == 'U' else 1)}"
        if name is None and not self._is_exact and dtype.newbyteorder("=") in _NAMES:
            return self._array(array.astype(dtype.newbyteorder("=")))
        if name is None:
            raise TypeError(f"an array of {dtype} cannot be sent to another process: use {', '.join(_DTYPES)} or text")
        return self._special("array", [self._buffer(_raw(array)), name, list(array.shape)])

    def _buffer(self, content: Buffer) -> int:
        if len(self.buffers) >= _MAX_BUFFERS:
            raise TypeError(f"it holds more than {_MAX_BUFFERS} arrays: stack them")
        self.buffers.append(content)
        return len(self.buffers) - 1

    def _special(self, tag: str, content: object) -> object:
        self.is_special = True
        return {tag: content}


def _raw(array: NDArray[Any]) -> Buffer:
    flat = np.ascontiguousarray(array).reshape(-1)
    return flat.view(np.uint8).data if flat.nbytes else b""


# --- reading ----------------------------------------------------------------------------------------------------------


def _decode(view: memoryview) -> Any:
    kind, count = _HEAD.unpack_from(view)
    if count > _MAX_BUFFERS:
        raise NotAValue(f"{count} buffers")
    lengths = struct.unpack_from(f"<{count + 1}Q", view, _HEAD.size)
    place = _HEAD.size + 8 * (count + 1)
    found = []
    for length in lengths:
        place += -place % _ALIGNED
        if length > len(view) - place:
            raise NotAValue("it is cut short")
        found.append(view[place : place + length])
        place += length
    main, *buffers = found
    if kind == _BYTES and not buffers:
        return bytes(main)
    if len(main) > _MAX_JSON:
        raise NotAValue(f"{len(main)} bytes of JSON")
    if kind == _JSON and not buffers:
        return orjson.loads(main)
    if kind == _TREE:
        return _Reader(buffers).node(orjson.loads(main), 0)
    raise NotAValue(f"kind {kind} with {count} buffers")


class _Reader:
    """Converts a tree to its value. Raises ``NotAValue`` or another error that ``decode`` converts."""

    def __init__(self, buffers: Sequence[memoryview]) -> None:
        self._buffers = buffers

    def node(self, node: Any, depth: int) -> Any:
        kind = type(node)
        if kind is not list and kind is not dict:
            return node
        if depth > _MAX_DEPTH + 2:
            raise NotAValue("it is nested too deep")
        deeper = depth + 1
        if kind is list:
            return [self.node(item, deeper) for item in node]
        [(tag, content)] = node.items()
        if tag == "dict":
            return {key: self.node(item, deeper) for key, item in _checked(content, dict).items()}
        return _READERS[tag](self, content, deeper)

    def nodes(self, content: object, depth: int) -> list[Any]:
        return [self.node(item, depth) for item in _checked(content, list)]

    def array(self, content: Any, _depth: int) -> NDArray[Any]:
        number, name, shape = content
        return self._array(number, name, _shape(shape))

    def scalar(self, content: Any, _depth: int) -> Any:
        number, name = content
        if name not in _DTYPES:
            raise NotAValue("a scalar of an unknown type")
        return self._array(number, name, ())[()]

    def objects(self, content: Any, depth: int) -> NDArray[Any]:
        shape, nodes = content
        items = self.nodes(nodes, depth)
        array = np.empty(len(items), dtype=object)
        for place, item in enumerate(items):
            array[place] = item
        return array.reshape(_shape(shape))

    def buffer(self, number: object) -> memoryview:
        if type(number) is not int or number < 0:
            raise NotAValue("the number of a buffer was expected")
        return self._buffers[number]

    def _array(self, number: object, name: object, shape: tuple[int, ...]) -> NDArray[Any]:
        buffer = self.buffer(number)
        dtype = _dtype(name)
        if math.prod(shape) * dtype.itemsize != buffer.nbytes:
            raise NotAValue(f"{buffer.nbytes} bytes for an array of {name} with shape {shape}")
        array: NDArray[Any] = np.ndarray(shape, dtype, buffer)
        if dtype.kind == "U" and array.size and array.reshape(-1).view(np.uint32).max() > _LAST_CHARACTER:
            raise NotAValue("code points beyond Unicode")
        if dtype.kind == "b" and array.size and array.view(np.uint8).max() > 1:
            raise NotAValue("truth values that are neither 0 nor 1")
        return array


_READERS: Final[dict[str, Callable[[_Reader, Any, int], Any]]] = {
    "tuple": lambda reader, content, depth: tuple(reader.nodes(content, depth)),
    "float": lambda _reader, content, _depth: {"nan": math.nan, "inf": math.inf, "-inf": -math.inf}[content],
    "bytes": lambda reader, content, _depth: bytes(reader.buffer(content)),
    "array": _Reader.array,
    "scalar": _Reader.scalar,
    "objects": _Reader.objects,
}


def _checked(content: object, kind: type) -> Any:
    if type(content) is not kind:
        raise NotAValue(f"a {kind.__name__} was expected")
    return content


def _dtype(name: object) -> np.dtype[Any]:
    if type(name) is not str:
        raise NotAValue("the name of a dtype was expected")
    if name[:1] in ("S", "U") and name[1:].isdecimal() and len(name) <= 10 and name[1] != "0":
        return np.dtype(name)
    if name not in _DTYPES:
        raise NotAValue(f"an unknown dtype: {name!r:.40}")
    return _DTYPES[name]


def _shape(shape: object) -> tuple[int, ...]:
    sizes = _checked(shape, list)
    if len(sizes) > _MAX_DIMENSIONS or any(type(size) is not int or not 0 <= size < 1 << 63 for size in sizes):
        raise NotAValue("a shape was expected")
    return tuple(sizes)

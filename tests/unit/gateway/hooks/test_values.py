"""Values between processes: decoding returns what was encoded, and refuses everything else."""

from __future__ import annotations

import json
import math
import os
import pickle
import random
import struct
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hn
from numpy.typing import NDArray

from gateway.hooks.values import NotAValue, decode, decode_body, encode, encode_body

DTYPES = ("bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64",
          "float16", "float32", "float64", "complex64", "complex128", "S3", "U4")  # fmt: skip
ARRAYS = hn.arrays(st.sampled_from(DTYPES), hn.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=3))
LEAVES = (
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats() | st.text() | st.binary() | ARRAYS
    | ARRAYS.filter(lambda a: a.size > 0 and a.dtype.kind not in "SU").map(lambda a: a.reshape(-1)[0])
)  # fmt: skip
VALUES = st.recursive(
    LEAVES,
    lambda inner: (
        st.lists(inner, max_size=3) | st.tuples(inner, inner) | st.dictionaries(st.text(max_size=4), inner, max_size=3)
        | st.lists(inner, max_size=3).map(lambda items: as_objects(items))
    ),
    max_leaves=8,
)  # fmt: skip
JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=6), inner, max_size=4),
    max_leaves=10,
)  # fmt: skip


def as_objects(items: list[Any]) -> NDArray[Any]:
    """Return an array of objects that numpy does not convert."""
    array = np.empty(len(items), dtype=object)
    for place, item in enumerate(items):
        array[place] = item
    return array


def same(one: Any, other: Any) -> bool:
    """Return whether two values are equal in value and type at every depth."""
    if type(one) is not type(other):
        return False
    if isinstance(one, np.ndarray):
        return (one.dtype, one.shape) == (other.dtype, other.shape) and same(one.tolist(), other.tolist())
    if isinstance(one, dict):
        return same(list(one.items()), list(other.items()))
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(same, one, other))
    if isinstance(one, complex | np.complexfloating):
        return same(float(one.real), float(other.real)) and same(float(one.imag), float(other.imag))
    if isinstance(one, float | np.floating):
        return bool(one == other) or (math.isnan(one) and math.isnan(other))
    return bool(one == other)


@given(VALUES)
def test_decoded_values_equal_encoded_ones_in_value_and_type(value: object) -> None:
    """Including tuples, numpy scalars and NaN."""
    assert same(value, decode(b"".join(encode(value, is_exact=True))))


@given(JSON)
def test_decoded_bodies_equal_encoded_ones(body: object) -> None:
    """Also bodies that look like the encoded form of an array."""
    kind, pieces = encode_body(body)
    assert same(body, decode_body(kind, b"".join(pieces)))
    assert "json" == kind
    assert same(
        {"array": [0, "int8", [1]], "is": body}, decode(b"".join(encode({"array": [0, "int8", [1]], "is": body})))
    )
    for other in (b"\x00body", {"x": np.arange(3)}):
        kind, pieces = encode_body(other)
        assert same(other, decode_body(kind, b"".join(pieces)))


@pytest.mark.parametrize("dtype", DTYPES)
def test_decoded_arrays_equal_encoded_ones(dtype: str) -> None:
    """In values, shape and type, also scalars, empty and non-contiguous arrays. They are writable."""
    array = np.arange(12).reshape(3, 4).astype(dtype)
    for one in (array, array[:, ::2], array.T, array[:0], array[0, 0]):
        found = decode(bytearray(b"".join(encode(one))))
        assert (np.asarray(found).dtype, np.shape(found)) == (np.asarray(one).dtype, np.shape(one))
        assert np.array_equal(found, one)
        if found is not None and np.ndim(found):
            found[...] = found


class Shared(dict):  # type: ignore[type-arg]
    """A class of user code."""


class Tensor:
    """An object with ``__array__``, like a torch tensor."""

    def __array__(self, dtype: Any = None, copy: Any = None) -> NDArray[Any]:
        return np.array([1.5, 2.5], dtype=dtype or "float32")


@pytest.mark.parametrize(
    ("value", "becomes"),
    [
        (Shared(a=1), {"a": 1}),
        ([Tensor()], [np.array([1.5, 2.5], dtype="float32")]),
        (np.array([[1, None]], dtype=object), [[1, None]]),
        (np.array([1, 2], dtype=">i4"), np.array([1, 2], dtype="int32")),
        (bytearray(b"x"), b"x"),
        (np.str_("x"), "x"),
        ({1: {2}}, {"1": [2]}),
    ],
)
def test_similar_types_are_converted_unless_exactness_is_asked_for(value: Any, becomes: Any) -> None:
    """State must return unchanged. A model's input need not."""
    assert same(becomes, decode(b"".join(encode(value))))
    if not (isinstance(value, np.ndarray) and value.dtype == object):
        with pytest.raises(TypeError):
            encode(value, is_exact=True)


def test_values_that_cannot_be_sent_are_refused_with_a_reason() -> None:
    """Objects, cycles, and excessive depths and counts."""
    endless: list[Any] = []
    endless.append(endless)
    deep: list[Any] = []
    for _ in range(200):
        deep = [deep]
    for value, reason in (
        (object(), "object is neither"),
        ([os.system], "neither numbers"),
        (endless, "contains itself"),
        (deep, "nested deeper"),
        (np.array(["2024-01-01"], dtype="datetime64[D]"), "datetime64"),
        (np.zeros(2, dtype=[("a", "i4")]), "array of"),
        (1 << 70, "64 bits"),
        ("\ud800", "surrogates"),
    ):
        with pytest.raises(TypeError, match=reason):
            encode(value)


def _value(kind: int, main: bytes, *buffers: bytes, lengths: list[int] | None = None) -> bytes:
    lengths = [len(main), *map(len, buffers)] if lengths is None else lengths
    found = struct.pack("<BxxxI", kind, len(lengths) - 1) + struct.pack(f"<{len(lengths)}Q", *lengths)
    for piece in (main, *buffers):
        found += bytes(-len(found) % 64) + piece
    return found


def _tree(node: object, *buffers: bytes) -> bytes:
    return _value(2, json.dumps(node).encode(), *buffers)


FORGED = {
    "empty": b"",
    "pickle": pickle.dumps([1]),
    "unknown kind": _value(9, b"1"),
    "buffers of plain JSON": _value(1, b"1", b"x"),
    "more buffers than there are bytes": struct.pack("<BxxxI", 2, 60_000),
    "too many buffers": struct.pack("<BxxxI", 2, 1 << 31),
    "length beyond the end": _value(2, b"1", lengths=[1 << 40]),
    "length that wraps around": _value(2, b"1", b"x", lengths=[1, (1 << 64) - 1]),
    "no JSON": _value(2, b"{"),
    "JSON nested deep": _value(2, b"[" * 100_000),
    "tree nested deep": _tree(json.loads("[" * 500 + "]" * 500)),
    "two keys": _tree({"tuple": [], "dict": {}}),
    "no key": _tree({}),
    "unknown tag": _tree({"object": "os.system"}),
    "dtype of objects": _tree({"array": [0, "O", [1]]}, b"A" * 8),
    "dtype of objects in words": _tree({"array": [0, "object", [1]]}, b"A" * 8),
    "structured dtype": _tree({"array": [0, [["a", "O"]], [1]]}, b"A" * 8),
    "dtype text": _tree({"array": [0, "O,O", [1]]}, b"A" * 16),
    "dtype with a huge item": _tree({"array": [0, "U999999999", [1]]}, b"A" * 8),
    "dtype without an item": _tree({"array": [0, "S0", [1]]}, b""),
    "shape larger than its bytes": _tree({"array": [0, "int8", [1 << 40]]}, b"A"),
    "shape smaller than its bytes": _tree({"array": [0, "int8", [1]]}, b"AA"),
    "negative shape": _tree({"array": [0, "int8", [-1, -1]]}, b"A"),
    "shape of truth": _tree({"array": [0, "int8", [True]]}, b"A"),
    "shape of fractions": _tree({"array": [0, "int8", [1.0]]}, b"A"),
    "shape with too many dimensions": _tree({"array": [0, "int8", [1] * 65]}, b"A"),
    "empty array of endless rows": _tree({"array": [0, "int8", [0, 1 << 62, 1 << 62]]}, b""),
    "buffer that is not there": _tree({"array": [1, "int8", [1]]}, b"A"),
    "buffer before the first": _tree({"array": [-1, "int8", [1]]}, b"A"),
    "truth values of 2": _tree({"array": [0, "bool", [1]]}, b"\x02"),
    "characters beyond the last": _tree({"array": [0, "U1", [1]]}, b"\xff\xff\xff\xff"),
    "scalar that is an array": _tree({"scalar": [0, "int8"]}, b"AA"),
    "objects that do not fit": _tree({"objects": [[3], [1]]}),
    "objects of endless rows": _tree({"objects": [[0, 1 << 62], []]}),
    "float that is none": _tree({"float": "1e999"}),
    "bytes of a dict": _tree({"bytes": {}}),
}


@pytest.mark.parametrize("name", FORGED)
def test_invalid_encodings_are_refused(name: str) -> None:
    """Lengths, counts, types, shapes and nesting come from user code."""
    with pytest.raises(NotAValue):
        decode(FORGED[name])


def test_damaged_encodings_decode_or_are_refused() -> None:
    """Truncated, changed and mixed bytes raise only ``NotAValue`` and create nothing large."""
    chance = random.Random(15)
    values = (
        {"a": np.arange(6, dtype="float32").reshape(2, 3), "b": [(1, 2.5), b"raw", {"x": None}]},
        [np.array(["ab", "c"]), np.array([b"x"]), np.float64(1), math.inf, np.array([True])],
        {"nested": [[[[{"deep": [np.zeros((0, 3))]}]]]]},
        [1, 2, "three"],
    )
    whole = [b"".join(encode(value)) for value in values]
    sources = [*whole, *FORGED.values()]
    outcomes = {"value": 0, "refused": 0}
    for _ in range(20_000):
        forged = bytearray(chance.choice(whole if chance.random() < 0.5 else sources))
        for _ in range(chance.randint(1, 4)):
            way = chance.randrange(4)
            place = chance.randrange(len(forged) + 1)
            if way == 0:
                del forged[place:]
            elif way == 1 and place < len(forged):
                forged[place] = chance.randrange(256)
            elif way == 2:
                forged[place : place + 8] = struct.pack("<Q", chance.choice([0, 1, 8, 1 << 31, 1 << 40, (1 << 64) - 1]))
            else:
                other = chance.choice(sources)
                start = chance.randrange(len(other) + 1)
                forged[place : place + 16] = other[start : start + 16]
        try:
            repr(decode(forged))
            outcomes["value"] += 1
        except NotAValue:
            outcomes["refused"] += 1
    assert min(outcomes.values()) > 500, outcomes

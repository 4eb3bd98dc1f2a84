"""Tensors of the Open Inference Protocol: datatypes, JSON and binary forms, to and from numpy. Pure.

BYTES tensors are object arrays of ``bytes``. BF16, which numpy does not know, travels as two opaque bytes (``V2``).
What Triton refuses is refused here too; what Triton answers with 500 (a body it cannot parse) is the caller's fault and
is refused as such.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Any, Final, NamedTuple

import numpy as np
import orjson
from numpy.typing import NDArray

from gateway.errors import BackendGarbage, InputRefused, MalformedBody
from gateway.protocols.json_body import loads
from gateway.triton.tensors import BYTES, FROM_TRITON, TO_TRITON, pack

Array = NDArray[Any]

DTYPES: Final[Mapping[str, np.dtype[Any]]] = {**FROM_TRITON, BYTES: np.dtype(object)}
_BINARY_ONLY: Final = ("FP16", "BF16")
_MAX_DIMENSIONS: Final = 32
"""numpy's own."""
_MAX_EMPTY: Final = 65_536
_MAX_DIGITS: Final = 18
_LISTS: Final = (list, tuple)
_NONE: Final[Mapping[str, Any]] = {}
_NO_OUTPUTS: Final[tuple[tuple[str, ...], frozenset[str], frozenset[str]]] = ((), frozenset(), frozenset())
_STRINGS = frozenset({str})
_TRUTH, _WHOLE, _ANY_NUMBER = frozenset({bool}), frozenset({int}), frozenset({int, float})
_EXAMPLE: Final = '{"inputs": [{"name": "text", "datatype": "BYTES", "shape": [1, 1], "data": ["…"]}]}'


def datatype_of(array: Array) -> str:
    """Return the protocol's name of an array's type; raises ``BackendGarbage`` where it has none."""
    if array.dtype.kind in "OSU":
        return BYTES
    try:
        return TO_TRITON[array.dtype]
    except KeyError:
        raise BackendGarbage(f"the answer has type {array.dtype}, which the protocol has no name for") from None


class Texts(NamedTuple):
    """A BYTES tensor whose elements are texts already; most are read, or were made, as such."""

    items: list[str]
    """In order, as many as the shape has places."""
    shape: Sequence[int]

    def array(self) -> Array:
        """Return it as an object array of bytes. Raises ``InputRefused`` for half a surrogate pair."""
        try:
            return objects([item.encode() for item in self.items]).reshape(self.shape)
        except UnicodeEncodeError as error:
            raise InputRefused("a text is not valid Unicode") from error


class Numbers(NamedTuple):
    """An FP32 tensor whose elements are numbers of Python already: few of them cost more as an array."""

    items: list[float]
    """In order, as many as the shape has places."""
    shape: Sequence[int]

    def array(self) -> Array:
        """Return it as an array."""
        return np.array(self.items, np.float32).reshape(self.shape)


Tensor = Array | Texts | Numbers


def as_array(tensor: Tensor) -> Array:
    """Return a tensor as numpy has it."""
    return tensor if isinstance(tensor, np.ndarray) else tensor.array()


@dataclass(slots=True)
class TensorRequest:
    """One inference request, however it came. ``outputs`` are the names asked for; empty for all."""

    path: str
    inputs: dict[str, Tensor]
    outputs: tuple[str, ...] = ()
    id: str = ""
    parameters: Mapping[str, Any] = field(default_factory=dict)
    all_binary: bool = False
    binary: frozenset[str] = frozenset()
    as_json: frozenset[str] = frozenset()


def read_request(raw: bytes, header_length: bytes, path: str) -> TensorRequest:
    """Read a REST request: JSON, and behind it the bytes of its binary tensors.

    ``header_length`` is the header ``Inference-Header-Content-Length`` (or empty). Raises ``MalformedBody`` and
    ``InputRefused``.
    """
    if header_length:
        is_number = header_length.isdigit() and len(header_length) <= _MAX_DIGITS
        if not is_number or not 0 < int(header_length) <= len(raw):
            raise InputRefused(f"Inference-Header-Content-Length must be a number from 1 to {len(raw)}")
        head, tail = raw[: int(header_length)], memoryview(raw)[int(header_length) :]
    else:
        head, tail = raw, memoryview(b"")
    body = parse_json(head)
    inputs = body.get("inputs")
    if not isinstance(inputs, list):
        raise InputRefused("inputs must be a list of tensors", hint=f"send {_EXAMPLE}")
    found: dict[str, Tensor] = {}
    at = 0
    for item in inputs:
        name, datatype, shape, own = _header(item)
        if name in found:
            raise InputRefused(f"input {shown(name)} is there twice")
        size = own.get("binary_data_size")
        if size is None:
            if "data" not in item:
                raise InputRefused(f"input {shown(name)} has neither data nor binary_data_size")
            read = _texts_of if datatype == BYTES else from_json
            found[name] = read(name, datatype, shape, item["data"])
            continue
        if "data" in item:
            raise InputRefused(f"input {shown(name)} has both data and binary_data_size")
        if isinstance(size, bool) or not isinstance(size, int) or size < 0 or at + size > len(tail):
            raise InputRefused(f"binary_data_size of input {shown(name)} does not fit the {len(tail)} bytes sent")
        found[name] = from_bytes(name, datatype, shape, tail[at : at + size])
        at += size
    if at != len(tail):
        raise InputRefused(f"{len(tail) - at} bytes follow the last tensor")
    parameters = _parameters(body)
    outputs, binary, plain = _outputs(body.get("outputs"))
    request_id = body.get("id", "")
    if not isinstance(request_id, str):
        raise InputRefused("id must be a text")
    return TensorRequest(
        path, found, outputs, request_id, parameters, parameters.get("binary_data_output") is True, binary, plain
    )


def parse_json(raw: bytes) -> dict[str, Any]:
    """Return the object that ``raw`` is; raises ``MalformedBody`` or ``InputRefused``."""
    try:
        body = loads(raw)
    except orjson.JSONDecodeError as error:
        raise MalformedBody(f"the body is not valid JSON: {error}", hint=f"send {_EXAMPLE}") from None
    if not isinstance(body, dict):
        raise InputRefused("the body must be an object", hint=f"send {_EXAMPLE}")
    return body


def from_json(name: str, datatype: str, shape: Sequence[int], data: object) -> Array:
    """Make a tensor of numbers or texts in (nested) lists. Raises ``InputRefused``."""
    if datatype in _BINARY_ONLY:
        raise InputRefused(f"{datatype} data cannot be sent as JSON: send input {shown(name)} as binary data")
    if not isinstance(data, list):
        raise InputRefused(f"data of input {shown(name)} must be a list")
    if datatype == BYTES:
        return _texts_of(name, datatype, shape, data).array()
    flat = _numbers(name, datatype, data)
    _refuse_size(name, flat.size, shape)
    return flat.reshape(shape)


def _texts_of(name: str, _datatype: str, shape: Sequence[int], data: object) -> Texts:
    texts: list[Any] | None = data if isinstance(data, list) else None
    if texts and type(texts[0]) in _LISTS:
        found = flat_of(texts)
        texts = None if found is None else found[0]
    if texts is None or not _STRINGS.issuperset(map(type, texts)):
        raise InputRefused(f"data of input {shown(name)} must be texts in lists of one length")
    _refuse_size(name, len(texts), shape)
    return Texts(texts, shape)


def from_bytes(name: str, datatype: str, shape: Sequence[int], data: bytes | memoryview) -> Array:
    """Make a tensor of its raw bytes. Raises ``InputRefused``."""
    if datatype == BYTES:
        items = unpack_texts(name, data)
        _refuse_size(name, items.size, shape)
        return items.reshape(shape)
    dtype = DTYPES[datatype]
    if len(data) != math.prod(shape) * dtype.itemsize:
        raise InputRefused(
            f"input {shown(name)} has {len(data)} bytes, its shape {list(shape)} of {datatype} needs "
            f"{math.prod(shape) * dtype.itemsize}"
        )
    return np.frombuffer(data, dtype).reshape(shape)


def unpack_texts(name: str, data: bytes | memoryview) -> Array:
    """Read the elements of a BYTES tensor, each behind its length in four bytes. Raises ``InputRefused``."""
    items, at, whole = [], 0, bytes(data)
    while at < len(whole):
        size = int.from_bytes(whole[at : at + 4], "little")
        at += 4
        if at > len(whole) or at + size > len(whole):
            raise InputRefused(f"input {shown(name)}: an element is cut short")
        items.append(whole[at : at + size])
        at += size
    return objects(items)


def flat_of(data: Sequence[Any]) -> tuple[list[Any], list[int]] | None:
    """Return the elements of nested lists in order, and their shape; None if lists beside each other differ in length.

    numpy would look at the values too, and copy every text to the length of the longest.
    """
    shape, flat = [len(data)], list(data)
    while flat and type(flat[0]) in _LISTS:
        length = len(flat[0])
        if any(type(item) not in _LISTS or len(item) != length for item in flat):
            return None
        shape.append(length)
        flat = list(chain.from_iterable(flat))
    return flat, shape


def objects(items: Sequence[object]) -> Array:
    """Return items as a flat object array, whatever they are."""
    array = np.empty(len(items), dtype=object)
    array[:] = items
    return array


def to_bytes(array: Array) -> bytes:
    """Return the raw bytes of a tensor."""
    return pack("", array)[1]


def write_answer(
    request: TensorRequest, outputs: Mapping[str, Tensor], *, model: str, version: str
) -> tuple[list[tuple[bytes, bytes]], bytes]:
    """Return headers and body of the REST answer: JSON, and behind it what was asked for as binary data.

    Raises ``InputRefused`` where an output has no JSON form.
    """
    described: list[dict[str, Any]] = []
    buffers: list[bytes] = []
    for name, tensor in outputs.items():
        is_binary = name in request.binary or (request.all_binary and name not in request.as_json)
        if not is_binary and not isinstance(tensor, np.ndarray):
            datatype = BYTES if type(tensor) is Texts else "FP32"
            described.append({"name": name, "datatype": datatype, "shape": tensor.shape, "data": tensor.items})
            continue
        array = as_array(tensor)
        datatype = datatype_of(array)
        entry: dict[str, Any] = {"name": name, "datatype": datatype, "shape": array.shape}
        if is_binary:
            buffers.append(to_bytes(array))
            entry["parameters"] = {"binary_data_size": len(buffers[-1])}
        elif datatype in _BINARY_ONLY:
            raise InputRefused(f"{datatype} data cannot be answered as JSON: ask for output {name} as binary data")
        elif datatype == BYTES:
            entry["data"] = [_text(item) for item in array.ravel().tolist()]
        else:
            entry["data"] = array.ravel()  # contiguous, as orjson needs it
        described.append(entry)
    answer: dict[str, Any] = {"id": request.id} if request.id else {}
    answer |= {"model_name": model, "model_version": version, "outputs": described}
    head = orjson.dumps(answer, option=orjson.OPT_SERIALIZE_NUMPY)
    if not buffers:
        return [(b"content-type", b"application/json")], head
    headers = [
        (b"content-type", b"application/octet-stream"),
        (b"inference-header-content-length", str(len(head)).encode()),
    ]
    return headers, b"".join((head, *buffers))


def shown(name: object) -> str:
    """Return a caller's name as it may appear in a message."""
    return ascii(str(name))[1:-1][:60]


def _header(item: object) -> tuple[str, str, list[int], Mapping[str, Any]]:
    if not isinstance(item, dict):
        raise InputRefused("every input must be an object with name, datatype, shape and data")
    name, datatype, shape = item.get("name"), item.get("datatype"), item.get("shape")
    if not isinstance(name, str) or not name:
        raise InputRefused("an input has no name")
    if not isinstance(datatype, str) or datatype not in DTYPES:
        raise InputRefused(f"input {shown(name)} has no datatype of {', '.join(DTYPES)}")
    check_shape(name, shape)
    own = _parameters(item)
    if "shared_memory_region" in own:
        raise InputRefused("shared memory is not possible across machines: send the tensor itself")
    return name, datatype, item["shape"], own


def check_shape(name: str, shape: object) -> None:
    """Raise ``InputRefused`` for anything but a list of at most 32 numbers from 0.

    How many elements there are is checked where they are counted. Those of an empty tensor are none whatever its other
    dimensions: they have a limit here, because as nested lists they are lists of that many.
    """
    if not isinstance(shape, list) or any([type(d) is not int or d < 0 for d in shape]):  # noqa: C419 - few of them
        raise InputRefused(f"shape of input {shown(name)} must be a list of numbers from 0")
    if len(shape) > _MAX_DIMENSIONS:
        raise InputRefused(
            f"shape of input {shown(name)} has {len(shape)} dimensions, at most {_MAX_DIMENSIONS} are taken"
        )
    if 0 in shape and math.prod(d for d in shape if d) > _MAX_EMPTY:
        raise InputRefused(
            f"shape of input {shown(name)} has no elements, so that its other dimensions may come to at most "
            f"{_MAX_EMPTY}"
        )


def _parameters(item: Mapping[str, Any]) -> Mapping[str, Any]:
    found = item.get("parameters")
    if found is None:
        return _NONE
    if not isinstance(found, dict):
        raise InputRefused("parameters must be an object")
    return found


def _outputs(items: object) -> tuple[tuple[str, ...], frozenset[str], frozenset[str]]:
    if items is None:
        return _NO_OUTPUTS
    if not isinstance(items, list):
        raise InputRefused("outputs must be a list")
    names, binary, plain = [], set(), set()
    for item in items:
        if not isinstance(item, dict) or not isinstance(item.get("name"), str):
            raise InputRefused("every output must be an object with a name")
        parameters = _parameters(item)
        if parameters.get("classification"):
            raise InputRefused("the classification extension is not offered", hint="ask for the output label")
        if "shared_memory_region" in parameters:
            raise InputRefused("shared memory is not possible across machines")
        names.append(item["name"])
        if parameters.get("binary_data") is True:
            binary.add(item["name"])
        elif parameters.get("binary_data") is False:
            plain.add(item["name"])
    return tuple(dict.fromkeys(names)), frozenset(binary), frozenset(plain)


def _numbers(name: str, datatype: str, data: list[Any]) -> Array:
    """Numbers in even lists as a flat array. Their types are looked at first: of texts and numbers together numpy would
    make texts, each as long as the longest.
    """
    dtype = DTYPES[datatype]
    wanted = {"b": _TRUTH, "i": _WHOLE, "u": _WHOLE, "f": _ANY_NUMBER}[dtype.kind]
    found = flat_of(data)
    if found is None or not set(map(type, found[0])) <= wanted:
        what = "true or false" if wanted is _TRUTH else "numbers" if wanted is _ANY_NUMBER else "whole numbers"
        raise InputRefused(f"data of input {shown(name)} must be {what} for {datatype}, in lists of one length")
    flat = found[0]
    if dtype.kind in "iu" and flat:
        limits = np.iinfo(dtype)
        if min(flat) < limits.min or max(flat) > limits.max:
            raise InputRefused(f"data of input {shown(name)} does not fit {datatype}")
    with np.errstate(over="ignore"):
        return np.array(flat, dtype=dtype)


def _refuse_size(name: str, size: int, shape: Sequence[int]) -> None:
    if size != math.prod(shape):
        raise InputRefused(f"input {shown(name)} has {size} elements, not those of its shape {list(shape)}")


def _text(item: object) -> str:
    return item.decode("utf-8", "replace") if isinstance(item, bytes) else str(item)

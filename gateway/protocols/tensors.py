"""Tensors of the Open Inference Protocol: datatypes, JSON and binary forms, to and from numpy. Pure.

BYTES tensors are object arrays of ``bytes``. BF16, which numpy does not have, is two opaque bytes (``V2``). Whatever
Triton refuses is refused here as well. A body that Triton cannot parse, to which it answers 500, is a client error
here.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import chain
from typing import Any, Final, TypedDict

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
_MAX_LISTS: Final = 65_536
"""Lists that the tensors of one request may become in any case, some 6 MB of memory."""
_BYTES_PER_LIST: Final = 4
"""Beyond ``_MAX_LISTS``, one list for so many bytes of tensor data: a column of FP32 numbers, [n, 1], is still read."""
_MAX_DIGITS: Final = 18
_LISTS: Final = (list, tuple)
_NONE: Final[Mapping[str, Any]] = {}
_JSON: Final = [(b"content-type", b"application/json")]
_ONE: Final = [1, 1]
_STRINGS = frozenset({str})
_TRUTH, _WHOLE, _ANY_NUMBER = frozenset({bool}), frozenset({int}), frozenset({int, float})
_EXAMPLE: Final = '{"inputs": [{"name": "text", "datatype": "BYTES", "shape": [1, 1], "data": ["…"]}]}'


def datatype_of(array: Array) -> str:
    """Return the protocol's name for an array's dtype. Raises ``BackendGarbage`` if there is none."""
    if array.dtype.kind in "OSU":
        return BYTES
    try:
        return TO_TRITON[array.dtype]
    except KeyError:
        raise BackendGarbage(f"the answer has type {array.dtype}, which the protocol has no name for") from None


class JsonTensor(TypedDict):
    """A tensor in JSON form, as sent by a caller or written to an answer."""

    name: str
    datatype: str
    shape: Sequence[int]
    data: Any
    """Its elements in order, as many as the shape has places: a list, or a flat array."""


Tensor = Array | JsonTensor


def as_array(tensor: Tensor) -> Array:
    """Return a tensor as a numpy array. Raises ``InputRefused`` for half a surrogate pair."""
    if isinstance(tensor, np.ndarray):
        return tensor
    if tensor["datatype"] != BYTES:
        return np.asarray(tensor["data"], DTYPES[tensor["datatype"]]).reshape(tensor["shape"])
    try:
        return objects([item.encode() for item in tensor["data"]]).reshape(tensor["shape"])
    except UnicodeEncodeError as error:
        raise InputRefused("a text is not valid Unicode") from error


class TensorRequest:
    """One inference request of either transport. Most have only inputs."""

    outputs: tuple[str, ...] = ()
    """The names asked for; empty for all."""
    id = ""
    parameters: Mapping[str, Any] = _NONE
    all_binary = False
    """Whether outputs go as binary data, apart from those in ``as_json``."""
    binary: frozenset[str] = frozenset()
    as_json: frozenset[str] = frozenset()

    inputs: Mapping[str, Tensor] = _NONE
    text: str | None = None
    """The text, if the request is one input ``text`` with one text, and nothing else."""


def read_request(raw: bytes, header_length: bytes, request: TensorRequest) -> None:
    """Read a REST request into ``request``: JSON, and behind it the bytes of its binary tensors.

    ``header_length`` is the header ``Inference-Header-Content-Length`` (or empty). Raises ``MalformedBody`` and
    ``InputRefused``.
    """
    tail: bytes | memoryview = b""
    if header_length:
        is_number = header_length.isdigit() and len(header_length) <= _MAX_DIGITS
        if not is_number or not 0 < int(header_length) <= len(raw):
            raise InputRefused(f"Inference-Header-Content-Length must be a number from 1 to {len(raw)}")
        raw, tail = raw[: int(header_length)], memoryview(raw)[int(header_length) :]
    body = parse_json(raw)
    inputs = body.get("inputs")
    if not isinstance(inputs, list):
        raise InputRefused("inputs must be a list of tensors", hint=f"send {_EXAMPLE}")
    if len(inputs) == 1 and len(body) == 1 and not tail and _is_one_text(item := inputs[0]):
        request.inputs, request.text = {"text": item}, item["data"][0]
        return
    found: dict[str, Any] = {}
    at = 0
    for item in inputs:
        if not isinstance(item, dict):
            raise InputRefused("every input must be an object with name, datatype, shape and data")
        name, datatype, shape = item.get("name"), item.get("datatype"), item.get("shape", ())
        if not isinstance(name, str) or not name:
            raise InputRefused("every input must have a name")
        if not isinstance(datatype, str) or datatype not in DTYPES:
            raise InputRefused(f"the datatype of input {shown(name)} must be one of {', '.join(DTYPES)}")
        check_shape(name, shape)
        size = _binary_size(item) if "parameters" in item else None
        if name in found:
            raise InputRefused(f"input {shown(name)} was sent twice")
        if size is None:
            if "data" not in item:
                raise InputRefused(f"input {shown(name)} has neither data nor binary_data_size")
            if datatype == BYTES:
                check_texts(name, item)
                found[name] = item
            else:
                found[name] = from_json(name, datatype, shape, item["data"])
            continue
        if "data" in item:
            raise InputRefused(f"input {shown(name)} has both data and binary_data_size")
        if isinstance(size, bool) or not isinstance(size, int) or size < 0 or at + size > len(tail):
            raise InputRefused(f"binary_data_size of input {shown(name)} does not fit the {len(tail)} bytes sent")
        found[name] = from_bytes(name, datatype, shape, tail[at : at + size])
        at += size
    if at != len(tail):
        raise InputRefused(f"{len(tail) - at} bytes follow the last tensor")
    request.inputs = found
    if "parameters" in body:
        request.parameters = _parameters(body)
        request.all_binary = request.parameters.get("binary_data_output") is True
    if "outputs" in body:
        request.outputs, request.binary, request.as_json = _outputs(body["outputs"])
    if "id" in body:
        request.id = body["id"]
        if not isinstance(request.id, str):
            raise InputRefused("id must be a string")


def _is_one_text(item: Any) -> bool:
    """Return whether an input is a text called ``text``, [1, 1], and nothing else: what most requests are."""
    if type(item) is not dict or len(item) != 4 or item.get("name") != "text" or item.get("datatype") != BYTES:
        return False
    shape, data = item.get("shape"), item.get("data")
    return (
        shape == _ONE and type(shape[0]) is int and type(shape[1]) is int  # true is 1, too
        and type(data) is list and len(data) == 1 and type(data[0]) is str
    )  # fmt: skip


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
    """Make a tensor of numbers in (nested) lists. Raises ``InputRefused``."""
    if datatype in _BINARY_ONLY:
        raise InputRefused(f"{datatype} data cannot be sent as JSON: send input {shown(name)} as binary data")
    if not isinstance(data, list):
        raise InputRefused(f"data of input {shown(name)} must be a list")
    flat = _numbers(name, datatype, data)
    if flat.size != math.prod(shape):
        raise _wrong_size(name, flat.size, shape)
    return flat.reshape(shape)


def check_texts(name: str, tensor: dict[str, Any]) -> None:
    """Flatten the data of a BYTES tensor. Raise ``InputRefused`` unless they are as many texts as its shape needs."""
    data = tensor["data"]
    if isinstance(data, list) and data and type(data[0]) in _LISTS:
        found = flat_of(data)
        data = tensor["data"] = None if found is None else found[0]
    if not isinstance(data, list) or not _STRINGS.issuperset(map(type, data)):
        raise InputRefused(f"data of input {shown(name)} must be texts in lists of one length")
    if len(data) != math.prod(tensor["shape"]):
        raise _wrong_size(name, len(data), tensor["shape"])


def from_bytes(name: str, datatype: str, shape: Sequence[int], data: bytes | memoryview) -> Array:
    """Make a tensor of its raw bytes. Raises ``InputRefused``."""
    if datatype == BYTES:
        items = unpack_texts(name, data)
        if items.size != math.prod(shape):
            raise _wrong_size(name, items.size, shape)
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

    Raises ``InputRefused`` if an output has no JSON form.
    """
    buffers: list[bytes] = []
    described: list[Mapping[str, Any]] = (
        [_described(request, name, outputs[name], buffers) for name in outputs]
        if request.all_binary or request.binary
        else [_in_json(name, tensor) if isinstance(tensor, np.ndarray) else tensor for name, tensor in outputs.items()]
    )
    answer = {"model_name": model, "model_version": version, "outputs": described}
    if request.id:
        answer = {"id": request.id, **answer}
    head = orjson.dumps(answer, option=orjson.OPT_SERIALIZE_NUMPY)
    if not buffers:
        return _JSON, head
    headers = [
        (b"content-type", b"application/octet-stream"),
        (b"inference-header-content-length", str(len(head)).encode()),
    ]
    return headers, b"".join((head, *buffers))


def _in_json(name: str, array: Array) -> JsonTensor:
    datatype = datatype_of(array)
    if datatype in _BINARY_ONLY:
        raise InputRefused(f"{datatype} data cannot be answered as JSON: ask for output {name} as binary data")
    flat = array.ravel()  # contiguous, as orjson needs it
    data = [_text(item) for item in flat.tolist()] if datatype == BYTES else flat
    return {"name": name, "datatype": datatype, "shape": array.shape, "data": data}


def _described(request: TensorRequest, name: str, tensor: Tensor, buffers: list[bytes]) -> Mapping[str, Any]:
    """Return what the JSON says of an output; what is asked for as binary data goes to ``buffers``."""
    if name not in request.binary and (not request.all_binary or name in request.as_json):
        return _in_json(name, tensor) if isinstance(tensor, np.ndarray) else tensor
    array = as_array(tensor)
    buffers.append(to_bytes(array))
    size = {"binary_data_size": len(buffers[-1])}
    return {"name": name, "datatype": datatype_of(array), "shape": array.shape, "parameters": size}


def shown(name: object) -> str:
    """Return a caller's text, escaped and cut, for a message."""
    return ascii(str(name))[1:-1][:60]


def _binary_size(item: Mapping[str, Any]) -> Any:
    """Return what an input says of its binary data."""
    parameters = _parameters(item)
    if "shared_memory_region" in parameters:
        raise InputRefused("shared memory is not possible across machines: send the tensor itself")
    return parameters.get("binary_data_size")


def check_shape(name: str, shape: Any) -> None:
    """Raise ``InputRefused`` for anything but a list of at most 32 numbers from 0.

    The number of elements is checked where they are counted. An empty tensor has none, whatever its other dimensions
    are. They have a limit here, because as nested lists it is that many lists.
    """
    for size in shape if isinstance(shape, list) else (None,):
        if type(size) is not int or size < 0:
            raise InputRefused(f"shape of input {shown(name)} must be a list of whole numbers of at least 0")
    if len(shape) > _MAX_DIMENSIONS:
        raise InputRefused(
            f"shape of input {shown(name)} has {len(shape)} dimensions, at most {_MAX_DIMENSIONS} are possible"
        )
    if 0 in shape and math.prod(d for d in shape if d) > _MAX_LISTS:
        raise InputRefused(
            f"shape of input {shown(name)} has no elements, so the product of its other dimensions must be at most "
            f"{_MAX_LISTS}"
        )


def check_lists(tensors: Mapping[str, Tensor]) -> None:
    """Raise ``InputRefused`` if all number tensors of a request together are too many nested lists.

    A dimension costs the caller a few bytes and can double the lists: [1000000, 1, 1] are a million lists more than
    [1000000, 1].
    """
    arrays = [tensor for tensor in tensors.values() if isinstance(tensor, np.ndarray) and tensor.dtype.kind != "O"]
    lists = sum(math.prod(array.shape[:depth]) for array in arrays for depth in range(1, array.ndim))
    most = max(_MAX_LISTS, sum(array.nbytes for array in arrays) // _BYTES_PER_LIST)
    if lists > most:
        raise InputRefused(
            f"the inputs are {lists} nested lists, at most {most} are made of this much data",
            hint="leave out dimensions of size 1 and empty inputs",
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
        return (), frozenset(), frozenset()
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
    """Return the numbers in even lists as a flat array.

    Their types are checked first: of texts and numbers together numpy makes texts, each as long as the longest.
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


def _wrong_size(name: str, size: int, shape: Sequence[int]) -> InputRefused:
    return InputRefused(f"input {shown(name)} has {size} elements, its shape {list(shape)} needs {math.prod(shape)}")


def _text(item: object) -> str:
    return item.decode("utf-8", "replace") if isinstance(item, bytes) else str(item)

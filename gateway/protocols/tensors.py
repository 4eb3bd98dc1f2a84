"""Tensors of the Open Inference Protocol: datatypes, JSON and binary forms, to and from numpy. Pure.

BYTES tensors are object arrays of ``bytes`` or ``str``. BF16, which numpy does not have, is two opaque bytes (``V2``).
Input that Triton refuses is refused here too. A body that cannot be parsed is answered as the client's error (Triton
answers 500).
"""

from __future__ import annotations

import math
from collections.abc import Container, Mapping, Sequence
from typing import Any, Final

import numpy as np
import orjson
from numpy.typing import NDArray

from gateway.errors import BackendGarbage, InputRefused
from gateway.protocols.json_body import loads
from gateway.triton.tensors import BYTES, FROM_TRITON, TO_TRITON, from_lists, pack, unpack_bytes

Array = NDArray[Any]

DTYPES: Final[Mapping[str, np.dtype[Any]]] = {**FROM_TRITON, BYTES: np.dtype(object)}
_BINARY_ONLY: Final = ("FP16", "BF16")
_MAX_DIMENSIONS: Final = 32
"""The limit of numpy 1; numpy 2 takes 64."""
_MAX_LISTS: Final = 65_536
"""Nested lists that the tensors of every request may become: about 6 MB of memory."""
_BYTES_PER_LIST: Final = 4
"""Beyond ``_MAX_LISTS``, one more list is allowed for each so many bytes of tensor data: enough for FP32 of [n, 1]."""
_MAX_DIGITS: Final = 18
"""The most digits of a length in a header: ``int`` raises an error for thousands of digits."""
_EMPTY: Final[Mapping[str, Any]] = {}
_JSON_HEADERS: Final = [(b"content-type", b"application/json")]
NO_SHARED_MEMORY: Final = "shared memory is not possible across machines: send the tensor itself"
NO_CLASSIFICATION: Final = "the classification extension is not offered: request the output label"
_EXAMPLE: Final = '{"inputs": [{"name": "text", "datatype": "BYTES", "shape": [1, 1], "data": ["…"]}]}'


def datatype_of(array: Array) -> str:
    """Return the protocol's name for an array's dtype. Raises ``BackendGarbage`` if there is none."""
    if array.dtype.kind in "OSU":
        return BYTES
    try:
        return TO_TRITON[array.dtype]
    except KeyError:
        raise BackendGarbage(f"the answer has type {array.dtype}, which the protocol has no name for") from None


class TensorRequest:
    """One inference request, over REST or gRPC. Most requests set only ``inputs``."""

    outputs: tuple[str, ...] = ()
    """Names of the requested outputs; empty for all."""
    id = ""
    """The caller's own id, which the answer repeats."""
    parameters: Mapping[str, Any] = _EMPTY
    all_binary = False
    """Whether outputs that are not in ``binary`` are answered as binary data."""
    binary: Mapping[str, bool] = _EMPTY
    """Whether an output is answered as binary data, by its name."""

    inputs: Mapping[str, Array] = _EMPTY


def read_request(raw: bytes, header_length: bytes, request: TensorRequest) -> None:
    """Read a REST request into ``request``: JSON, followed by the bytes of its binary tensors.

    ``header_length`` is the header ``Inference-Header-Content-Length`` (or empty). Raises ``MalformedBody`` and
    ``InputRefused``.
    """
    binary: bytes | memoryview = b""
    if header_length:
        is_number = header_length.isdigit() and len(header_length) <= _MAX_DIGITS
        if not is_number or not 0 < int(header_length) <= len(raw):
            raise InputRefused(f"Inference-Header-Content-Length must be a number from 1 to {len(raw)}")
        raw, binary = raw[: int(header_length)], memoryview(raw)[int(header_length) :]
    body = parse_json(raw)
    inputs = body.get("inputs")
    if not isinstance(inputs, list):
        raise InputRefused("inputs must be a list of tensors", hint=f"send {_EXAMPLE}")
    tensors: dict[str, Array] = {}
    offset = 0
    for item in inputs:
        if not isinstance(item, dict):
            raise InputRefused("every input must be an object with name, datatype, shape and data")
        name, shape = item.get("name"), item.get("shape", ())
        datatype: Any = item.get("datatype")
        if not isinstance(name, str) or not name:
            raise InputRefused("every input must have a name")
        check_input(name, datatype, shape, tensors)
        size = _binary_size(item) if "parameters" in item else None
        if size is None:
            if "data" not in item:
                raise InputRefused(f"input {escaped(name)} has neither data nor binary_data_size")
            tensors[name] = from_json(name, datatype, shape, item["data"])
            continue
        if "data" in item:
            raise InputRefused(f"input {escaped(name)} has both data and binary_data_size")
        if isinstance(size, bool) or not isinstance(size, int) or size < 0 or offset + size > len(binary):
            raise InputRefused(f"binary_data_size of input {escaped(name)} does not fit the {len(binary)} bytes sent")
        tensors[name] = from_bytes(name, datatype, shape, binary[offset : offset + size])
        offset += size
    if offset != len(binary):
        raise InputRefused(f"{len(binary) - offset} bytes follow the last tensor")
    request.inputs = tensors
    if "parameters" in body:
        request.parameters = _parameters(body)
        request.all_binary = request.parameters.get("binary_data_output") is True
    if "outputs" in body:
        request.outputs, request.binary = _outputs(body["outputs"])
    if "id" in body:
        request.id = body["id"]
        if not isinstance(request.id, str):
            raise InputRefused("id must be a string")


def parse_json(raw: bytes) -> dict[str, Any]:
    """Parse a JSON object. Raises ``MalformedBody`` for invalid JSON, ``InputRefused`` for another value."""
    body = loads(raw, hint=f"send {_EXAMPLE}")
    if not isinstance(body, dict):
        raise InputRefused("the body must be an object", hint=f"send {_EXAMPLE}")
    return body


def from_json(name: str, datatype: str, shape: Sequence[int], data: object) -> Array:
    """Return numbers or texts in (nested) lists as an array of ``shape`` and of the dtype of ``datatype``.

    Raises ``InputRefused`` if their number or their types do not fit.
    """
    if datatype in _BINARY_ONLY:
        raise InputRefused(f"{datatype} data cannot be sent as JSON: send input {escaped(name)} as binary data")
    if not isinstance(data, list):
        raise InputRefused(f"data of input {escaped(name)} must be a list")
    flat = from_lists(escaped(name), DTYPES[datatype], data)
    if flat.size != math.prod(shape):
        raise wrong_size(name, flat.size, shape)
    return flat.reshape(shape)


def from_bytes(name: str, datatype: str, shape: Sequence[int], data: bytes | memoryview) -> Array:
    """Return raw bytes as an array of ``shape`` and of the dtype of ``datatype``; numbers are read-only and not copied.

    Raises ``InputRefused`` if there are too many or too few bytes.
    """
    if datatype == BYTES:
        try:
            items = unpack_bytes(data)
        except ValueError as error:
            raise InputRefused(f"input {escaped(name)}: {error}") from None
        if items.size != math.prod(shape):
            raise wrong_size(name, items.size, shape)
        return items.reshape(shape)
    dtype = DTYPES[datatype]
    if len(data) != math.prod(shape) * dtype.itemsize:
        raise InputRefused(
            f"input {escaped(name)} has {len(data)} bytes, its shape {list(shape)} of {datatype} needs "
            f"{math.prod(shape) * dtype.itemsize}"
        )
    return np.frombuffer(data, dtype).reshape(shape)


def object_array(items: Sequence[object]) -> Array:
    """Return items of any type as an object array of shape [n]."""
    array = np.empty(len(items), dtype=object)
    array[:] = items
    return array


def to_bytes(array: Array) -> bytes:
    """Return a tensor as raw bytes: numbers in row-major order, each BYTES element after its length."""
    return pack("", array)[1]


def write_answer(
    request: TensorRequest, outputs: Mapping[str, Array], *, model: str, version: str
) -> tuple[list[tuple[bytes, bytes]], bytes]:
    """Return headers and body of the REST answer: JSON, followed by the outputs that were requested as binary data.

    Raises ``InputRefused`` if an output has no JSON form.
    """
    buffers: list[bytes] = []
    entries: list[Mapping[str, Any]] = []
    for name, array in outputs.items():
        datatype = datatype_of(array)
        entry: dict[str, Any] = {"name": name, "datatype": datatype, "shape": array.shape}
        if request.binary.get(name, request.all_binary):
            buffers.append(to_bytes(array))
            entry["parameters"] = {"binary_data_size": len(buffers[-1])}
        elif datatype in _BINARY_ONLY:
            raise InputRefused(f"{datatype} data cannot be answered as JSON: request output {name} as binary data")
        else:
            flat = array.ravel()  # contiguous, as orjson needs it
            entry["data"] = list(map(_text, flat.tolist())) if datatype == BYTES else flat
        entries.append(entry)
    answer = {"model_name": model, "model_version": version, "outputs": entries}
    if request.id:
        answer = {"id": request.id, **answer}
    head = orjson.dumps(answer, option=orjson.OPT_SERIALIZE_NUMPY)
    if not buffers:
        return _JSON_HEADERS, head
    headers = [
        (b"content-type", b"application/octet-stream"),
        (b"inference-header-content-length", str(len(head)).encode()),
    ]
    return headers, b"".join((head, *buffers))


def escaped(name: object) -> str:
    """Return a caller's text for a message: escaped as ASCII and cut to 60 characters."""
    return ascii(str(name))[1:-1][:60]


def _binary_size(item: Mapping[str, Any]) -> Any:
    """Return ``binary_data_size`` of an input, None if there is none. Raises ``InputRefused`` for shared memory."""
    parameters = _parameters(item)
    if "shared_memory_region" in parameters:
        raise InputRefused(NO_SHARED_MEMORY)
    return parameters.get("binary_data_size")


def check_input(name: str, datatype: object, shape: Any, others: Container[str]) -> None:
    """Raise ``InputRefused`` unless an input's name is not among ``others``, its datatype is known, and ``shape`` is a
    list of at most 32 whole numbers of at least 0.

    Whether the data have as many elements as the shape says is checked with the data. An empty tensor (a dimension of
    0) has no data to compare, so its other dimensions are limited here: it may become that many nested lists.
    """
    if name in others:
        raise InputRefused(f"input {escaped(name)} was sent twice")
    if not isinstance(datatype, str) or datatype not in DTYPES:
        raise InputRefused(f"the datatype of input {escaped(name)} must be one of {', '.join(DTYPES)}")
    for size in shape if isinstance(shape, list) else (None,):
        if type(size) is not int or size < 0:
            raise InputRefused(f"shape of input {escaped(name)} must be a list of whole numbers of at least 0")
    if len(shape) > _MAX_DIMENSIONS:
        raise InputRefused(
            f"shape of input {escaped(name)} has {len(shape)} dimensions, at most {_MAX_DIMENSIONS} are possible"
        )
    if 0 in shape and math.prod(d for d in shape if d) > _MAX_LISTS:
        raise InputRefused(
            f"shape of input {escaped(name)} has no elements, so the product of its other dimensions must be at most "
            f"{_MAX_LISTS}"
        )


def check_lists(tensors: Mapping[str, Array]) -> None:
    """Raise ``InputRefused`` if all number tensors of a request together are too many nested lists.

    A further dimension costs the caller a few bytes and can double the number of lists: [1000000, 1, 1] becomes a
    million more lists than [1000000, 1].
    """
    arrays = [array for array in tensors.values() if array.dtype.kind != "O"]
    lists = sum(math.prod(array.shape[:depth]) for array in arrays for depth in range(1, array.ndim))
    limit = max(_MAX_LISTS, sum(array.nbytes for array in arrays) // _BYTES_PER_LIST)
    if lists > limit:
        raise InputRefused(
            f"the inputs would become {lists} nested lists; for this much data, at most {limit} are allowed",
            hint="leave out dimensions of size 1 and empty inputs",
        )


def _parameters(item: Mapping[str, Any]) -> Mapping[str, Any]:
    parameters = item.get("parameters")
    if parameters is None:
        return _EMPTY
    if not isinstance(parameters, dict):
        raise InputRefused("parameters must be an object")
    return parameters


def _outputs(items: object) -> tuple[tuple[str, ...], Mapping[str, bool]]:
    if items is None:
        return (), _EMPTY
    if not isinstance(items, list):
        raise InputRefused("outputs must be a list")
    names, binary = [], {}
    for item in items:
        if not isinstance(item, dict) or not isinstance(item.get("name"), str):
            raise InputRefused("every output must be an object with a name")
        parameters = _parameters(item)
        if parameters.get("classification"):
            raise InputRefused(NO_CLASSIFICATION)
        if "shared_memory_region" in parameters:
            raise InputRefused(NO_SHARED_MEMORY)
        names.append(item["name"])
        if isinstance(is_binary := parameters.get("binary_data"), bool):
            binary[item["name"]] = is_binary
    return tuple(dict.fromkeys(names)), binary


def wrong_size(name: str, size: int, shape: Sequence[int]) -> InputRefused:
    """Return the refusal of an input with more or fewer elements than its shape says."""
    return InputRefused(f"input {escaped(name)} has {size} elements, its shape {list(shape)} needs {math.prod(shape)}")


def _text(item: object) -> str:
    return item.decode("utf-8", "replace") if isinstance(item, bytes) else str(item)

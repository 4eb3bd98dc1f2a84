"""The Open Inference Protocol (v2): names and descriptions of models, and inference.

REST (``http``) and gRPC (``grpc``) use it. Inputs depend on the kind of endpoint:

- A text task takes ``text`` (BYTES, tokenized by the gateway), or the model's own tensors, which it gets unchanged.
- A model without a task gets its tensors unchanged.
- A ``Preprocess`` class gets ``{input name: nested lists}``; each value in the dict that it returns becomes an output.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import orjson
from numpy.typing import NDArray

from gateway.errors import EndpointNotFound, InputRefused
from gateway.handlers.endpoint import Endpoint
from gateway.handlers.tensors import RawTensors, TensorHandler
from gateway.handlers.text import TextHandler
from gateway.path.call import Call, Reply
from gateway.path.routing import Snapshot
from gateway.protocols.json_body import dumps
from gateway.protocols.tensors import (
    DTYPES,
    TensorRequest,
    check_lists,
    escaped,
    object_array,
    write_answer,
)
from gateway.spec import normalize_url
from gateway.trace import Trace
from gateway.triton.port import Backend, TensorInfo
from gateway.triton.tensors import BYTES, flatten
from preprocessing.activations import sigmoid, softmax
from preprocessing.types import Prepared

Array = NDArray[Any]

PLATFORM: Final = "triton_gateway"
EXTENSIONS: Final = ("binary_tensor_data", "model_configuration", "model_repository", "statistics", "parameters")
_DATATYPES: Final = {("object" if dtype.kind == "O" else dtype.name): name for name, dtype in DTYPES.items()}
_PROTOCOL_PARAMETERS: Final = frozenset({"binary_data_output", "timeout", "priority"})
_SEQUENCE_PARAMETERS: Final = ("sequence_id", "sequence_start", "sequence_end")
_CLASSIFICATION: Final = "text-classification"
_EMBEDDINGS: Final = "sentence-embeddings"
_ONE_TEXT_TASKS: Final = (_CLASSIFICATION, _EMBEDDINGS)


# --- descriptions of models -------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ModelShape:
    """A model in the protocol's terms. Shapes include the batch dimension; −1 is any size."""

    name: str
    versions: tuple[str, ...]
    inputs: tuple[tuple[str, str, tuple[int, ...]], ...]
    outputs: tuple[tuple[str, str, tuple[int, ...]], ...]
    max_batch_size: int

    def metadata(self) -> dict[str, Any]:
        """Return the protocol's model metadata."""
        return {
            "name": self.name,
            "versions": list(self.versions),
            "platform": PLATFORM,
            "inputs": [{"name": n, "datatype": t, "shape": list(s)} for n, t, s in self.inputs],
            "outputs": [{"name": n, "datatype": t, "shape": list(s)} for n, t, s in self.outputs],
        }

    def config(self) -> dict[str, Any]:
        """Return the same as a Triton model configuration, for clients that ask for one (perf_analyzer)."""
        skip = 1 if self.max_batch_size else 0
        return {
            "name": self.name,
            "platform": PLATFORM,
            "backend": PLATFORM,
            "max_batch_size": self.max_batch_size,
            "input": [{"name": n, "data_type": _config_type(t), "dims": list(s[skip:])} for n, t, s in self.inputs],
            "output": [{"name": n, "data_type": _config_type(t), "dims": list(s[skip:])} for n, t, s in self.outputs],
        }


def split_path(path: str) -> tuple[str, str]:
    """Split the part of a path after ``/v2/models/`` into the endpoint's url and the action.

    Actions are ``infer``, ``ready``, ``config``, ``stats`` or ``""``. Raises ``EndpointNotFound`` if no model is named.
    """
    parts = path.strip("/").split("/")
    action = ""
    if len(parts) > 1 and parts[-1] in ("infer", "ready", "config", "stats"):
        action = parts.pop()
    version = None
    if len(parts) > 2 and parts[-2] == "versions":
        version = parts.pop()
        parts.pop()
    if not parts[0]:
        raise EndpointNotFound("no model is named")
    return normalize_url("/".join(parts), version), action


def may_be_version_one(path: str) -> bool:
    """Return whether ``path`` names a version 1, so that ``resolve_version_one`` may change it."""
    return path.endswith("/1")


def resolve_version_one(snapshot: Snapshot, path: str) -> str:
    """Return the url of ``path``: version 1 of an endpoint without versions is the endpoint itself, as in Triton."""
    if may_be_version_one(path) and path not in snapshot.endpoints and path not in snapshot.pending:
        url = path[:-2]
        served, pending = snapshot.endpoints.get(url), snapshot.pending.get(url)
        if not served.identity.version if served is not None else pending is not None and pending.stands_alone:
            return url
    return path


def representative(snapshot: Snapshot, path: str) -> Endpoint:
    """Return the endpoint that describes ``path``; for a canary, its stable version. Raises as ``Snapshot.resolve``."""
    endpoint, _, stable = snapshot.resolve(path, "")
    return stable or endpoint


def describe(snapshot: Snapshot, path: str) -> ModelShape:
    """Return the inputs and outputs of the model at ``path``. Raises as ``Snapshot.resolve``."""
    endpoint = representative(snapshot, path)
    identity = endpoint.identity
    if path in snapshot.canaries:
        name, versions = path, tuple(v.rpartition("/")[2] for v in snapshot.canaries[path].shares)
    else:
        name, versions = identity.endpoint, (identity.version or "1",)
    inputs, outputs, max_rows = _inputs_and_outputs(endpoint)
    return ModelShape(name, versions, inputs, outputs, max_rows)


async def is_ready(snapshot: Snapshot, path: str) -> bool:
    """Return whether the model at ``path`` is ready, in Triton too. Raises as ``Snapshot.resolve``."""
    endpoint = representative(snapshot, path)
    backend, model = _backend_and_model(endpoint)
    return backend is None or await backend.is_ready(model)


def index(snapshot: Snapshot, *, only_ready: bool) -> list[dict[str, str]]:
    """Return the repository index: every configured version with its state."""
    models = [
        {"name": e.identity.endpoint, "version": e.identity.version or "1", "state": "READY"}
        for e in snapshot.endpoints.values()
    ]
    models += [{"name": name, "version": "", "state": "READY", "reason": "canary"} for name in snapshot.canaries]
    if not only_ready:
        models += [
            {
                "name": url,
                "version": "",
                "state": "LOADING" if pending.state == "pending" else "UNAVAILABLE",
                "reason": pending.reason,
            }
            for url, pending in snapshot.pending.items()
            if url not in snapshot.endpoints
        ]
    return sorted(models, key=lambda entry: (entry["name"], entry["version"]))


def statistics_of(snapshot: Snapshot, path: str, rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return the rows of ``rows`` (the statistics of all versions) that belong to ``path``.

    A canary has the rows of its versions, under its own name. Raises as ``Snapshot.resolve``.
    """
    endpoint = representative(snapshot, path)
    urls = snapshot.canaries[path].shares if path in snapshot.canaries else (endpoint.identity.url,)
    name = path if path in snapshot.canaries else endpoint.identity.endpoint
    wanted = {(e.endpoint, e.version or "1") for e in (snapshot.endpoints[url].identity for url in urls)}
    return [{**row, "name": name} for row in rows if (row["name"], row["version"]) in wanted]


def _inputs_and_outputs(endpoint: Endpoint) -> tuple[Any, Any, int]:
    if endpoint.text is not None:
        config = endpoint.text.processor.config
        fields = endpoint.text.processor.text_fields
        required = fields[:1] if fields == ("text", "text_pair") else fields
        inputs = tuple((name, BYTES, (-1, 1)) for name in required)
        width = len(config.labels)
        if endpoint.task == _EMBEDDINGS:
            width = (config.embedding_size or 0) * max(len(config.pooling), 1) or -1
        outputs = _output_shapes(endpoint.task, width)
        return inputs, outputs, config.max_rows
    if endpoint.task:
        return (("text", BYTES, (-1, 1)),), _output_shapes("", 1), 0
    call = getattr(endpoint.handler, "call", None)
    if isinstance(endpoint.handler, TensorHandler) and call is not None:
        model = call.model
        outputs_of = [t for t in model.outputs if t.name in call.outputs]
        return _shapes_of(model.inputs), _shapes_of(outputs_of), model.max_batch_size
    return (), (), 0


def _shapes_of(tensors: Sequence[TensorInfo]) -> tuple[tuple[str, str, tuple[int, ...]], ...]:
    return tuple((t.name, _DATATYPES.get(t.dtype, BYTES), t.shape) for t in tensors)


def _backend_and_model(endpoint: Endpoint) -> tuple[Backend | None, str]:
    call = getattr(endpoint.text or endpoint.handler, "call", None)
    return (call.backend, call.model.name) if call is not None else (None, "")


def _config_type(datatype: str) -> str:
    return "TYPE_STRING" if datatype == BYTES else f"TYPE_{datatype}"


# --- one inference ----------------------------------------------------------------------------------------------------


class InferCall(TensorRequest, Call):
    """One inference over REST. gRPC's subclass renders the same tensors as a message."""

    needs_outputs = True

    def __init__(self, path: str) -> None:
        self.path = path

    def apply_parameters(self) -> None:
        """Apply the parameters for the gateway: the time-out. Raises ``InputRefused`` for stateful sequences."""
        parameters = self.parameters
        if any(parameters.get(name) for name in _SEQUENCE_PARAMETERS):
            raise InputRefused(
                "stateful sequences are not offered: requests of one sequence may reach different replicas"
            )
        # The protocol's time-out is in microseconds.
        value = parameters.get("timeout")
        if isinstance(value, int) and not isinstance(value, bool) and value > 0:
            self.timeout = value * 1e-6

    def question(self, endpoint: Endpoint) -> Any:
        """See ``Call.question``: a body of texts for a text task, else the tensors (``RawTensors``)."""
        if endpoint.text is not None:
            processor = endpoint.text.processor
            fields = processor.text_fields
            body = self._text_body(fields, endpoint.task)
            if body:
                return body
            if not self.inputs or any(name not in processor.input_names for name in self.inputs):
                raise InputRefused(
                    f"the inputs are {_names(self.inputs)}; this endpoint takes {', '.join(fields)} (BYTES), "
                    f"or the model's own tensors {', '.join(processor.input_names)}"
                )
        elif endpoint.task:
            return self.generation_body()
        elif not isinstance(endpoint.handler, TensorHandler):
            check_lists(self.inputs)
            return {name: _lists(array) for name, array in self.inputs.items()}
        if not self.inputs:
            raise InputRefused("the request has no inputs")
        return RawTensors(self.inputs, self.outputs)

    def render(self, answer: Any, endpoint: Endpoint, trace: Trace) -> Any:
        """See ``Call.render``."""
        model, version = endpoint.identity.endpoint, endpoint.identity.version or "1"
        tensors = self.tensors(answer, endpoint, trace)
        headers, content = write_answer(self, tensors, model=model, version=version)
        return content if len(headers) == 1 else Reply(200, headers, content)  # one header: plain JSON

    def tensors(self, answer: Any, endpoint: Endpoint, trace: Trace) -> dict[str, Array]:
        """Return the requested outputs by name. Raises ``InputRefused`` for one that does not exist."""
        outputs: Mapping[str, Array] = trace.outputs or {}
        if endpoint.text is not None:
            prepared = trace.prepared
            if not isinstance(prepared, Prepared):
                return dict(outputs)  # the caller sent the model's own tensors
            defaults = _task_tensors(endpoint.task, endpoint.text, outputs, answer, prepared)
            if not self.outputs:
                return defaults
            of_model = {name: array for name, array in outputs.items() if len(array) == len(prepared.rows)}
            return self._select_outputs({**of_model, **defaults}, defaults, endpoint)
        if endpoint.task:
            tensors = _result_tensor(answer["results"])
        elif isinstance(endpoint.handler, TensorHandler):
            return dict(outputs)
        else:
            named = answer if isinstance(answer, Mapping) else {"output": answer}
            tensors = {str(name): _as_tensor(value) for name, value in named.items()}
        return self._select_outputs(tensors, tensors, endpoint)

    def generation_body(self) -> dict[str, Any]:
        """Return the body of a text-generation endpoint. Raises ``InputRefused`` for other tensors than ``text``."""
        if set(self.inputs) != {"text"}:
            raise InputRefused(f"the inputs are {_names(self.inputs)}; this endpoint takes text (BYTES)")
        return {"text": _texts("text", self.inputs["text"]), "parameters": self._parameters()}

    def _text_body(self, fields: Sequence[str], task: str) -> dict[str, Any]:
        """Return the body for a text task; empty if the request has no tensors, or any that is not in ``fields``."""
        body: dict[str, Any] = {}
        for name, tensor in self.inputs.items():
            if name not in fields:
                return {}
            body[name] = _texts(name, tensor)
        if "text" in fields:
            if task in _ONE_TEXT_TASKS and len(body) == 1 and len(texts := body.get("text", ())) == 1:
                body["text"] = texts[0]  # the answer is the same, and cheaper than a list of one
        elif body:  # a single question or query is not sent as a list
            body = {
                name: texts[0] if len(texts) == 1 and name != "documents" else texts for name, texts in body.items()
            }
        parameters = self._parameters() if self.parameters else None
        return {**body, "parameters": parameters} if parameters else body

    def _parameters(self) -> dict[str, Any]:
        return {n: _parameter_value(v) for n, v in self.parameters.items() if not _is_for_protocol(n)}

    def _select_outputs(
        self, available: Mapping[str, Array], defaults: Mapping[str, Array], endpoint: Endpoint
    ) -> dict[str, Array]:
        if not self.outputs:
            return dict(defaults)
        for name in self.outputs:
            if name not in available:
                raise InputRefused(
                    f"unexpected inference output {escaped(name)} for model {endpoint.identity.url}",
                    hint=f"there are {', '.join(available)}",
                )
        return {name: available[name] for name in self.outputs}


def _output_shapes(task: str, width: int) -> tuple[tuple[str, str, tuple[int, int]], ...]:
    """Return name, datatype and shape of each output of a text task; ``width`` is the number of values in a row."""
    if task == _EMBEDDINGS:
        return (("embedding", "FP32", (-1, width)),)
    if task == _CLASSIFICATION:
        return (
            ("logits", "FP32", (-1, width)), ("probabilities", "FP32", (-1, width)), ("label", BYTES, (-1, 1)),
            ("score", "FP32", (-1, 1)),
        )  # fmt: skip
    return (("result", BYTES, (-1, 1)),)


def _task_tensors(
    task: str, handler: TextHandler, outputs: Mapping[str, Array], answer: Mapping[str, Any], prepared: Prepared
) -> dict[str, Array]:
    """Return the answer of a text task as the tensors of ``_output_shapes``, with a row for each text."""
    is_batch = prepared.request.is_batch
    if task == _EMBEDDINGS:
        vectors: Array = answer["embeddings" if is_batch else "embedding"]
        return {"embedding": vectors.reshape(len(prepared.rows), -1)}
    results: Any = answer["results"] if is_batch else (answer,)
    if task != _CLASSIFICATION:
        return _result_tensor(results)
    logits = np.asarray(next(iter(outputs.values())), dtype=np.float32)
    config = handler.processor.config
    if all(len(result["scores"]) == len(config.labels) for result in results):
        rows = [[result["scores"][label] for label in config.labels] for result in results]
        probabilities = np.array(rows, np.float32)
    else:  # the caller asked for the best labels only
        activation = prepared.request.options.get("function_to_apply", config.activation)
        probabilities = (
            logits if activation == "none" else sigmoid(logits) if activation == "sigmoid" else softmax(logits)
        )
    return {
        "logits": logits,
        "probabilities": probabilities,
        "label": object_array([result["label"] for result in results]).reshape(-1, 1),
        "score": np.array([[result["score"]] for result in results], np.float32),
    }


def _result_tensor(results: Sequence[Any]) -> dict[str, Array]:
    """Return the JSON of each result."""
    texts = [orjson.dumps(result, option=orjson.OPT_SERIALIZE_NUMPY) for result in results]
    return {"result": object_array(texts).reshape(-1, 1)}


def _lists(array: Array) -> Any:
    """Return a tensor as a hook gets it: numbers as nested lists, texts as one flat list."""
    if array.dtype.kind != "O":
        return array.tolist()
    return [_decoded(item) for item in array.ravel().tolist()]


def _texts(name: str, array: Array) -> list[str]:
    if array.ndim not in (1, 2) or (array.ndim == 2 and 1 not in array.shape):
        raise InputRefused(f"input {escaped(name)} has shape {list(array.shape)}; it takes [n, 1] or [n]")
    if array.dtype.kind != "O":
        raise InputRefused(f"input {escaped(name)} must be BYTES")
    try:
        return [item if isinstance(item, str) else item.decode() for item in array.ravel().tolist()]
    except UnicodeDecodeError as error:
        raise InputRefused(f"input {escaped(name)} is not valid UTF-8") from error


def _is_for_protocol(name: str) -> bool:
    return name in _PROTOCOL_PARAMETERS or name.startswith("triton_")


def _parameter_value(value: object) -> object:
    # gRPC parameters are single values, so lists are sent as JSON.
    if isinstance(value, str) and value[:1] == "[":
        try:
            return orjson.loads(value)
        except orjson.JSONDecodeError:
            return value
    return value


def _decoded(item: object) -> object:
    return item.decode("utf-8", "replace") if isinstance(item, bytes) else item


def _as_tensor(value: object) -> Array:
    """Return a hook's value as a tensor: numbers as they are, texts as BYTES, everything else as BYTES of its JSON."""
    if isinstance(value, list | tuple):
        flat, shape = flatten(value) or ([], [])
        if any(isinstance(item, str) for item in flat):
            if all(isinstance(item, str) for item in flat):
                return object_array([item.encode() for item in flat]).reshape(shape)
            return object_array([dumps(value)])
    try:
        array = np.asarray(value)
    except ValueError:
        array = np.empty(0, dtype=object)
    if array.dtype.kind in "biuf":
        return array if array.ndim else array.reshape(1)
    if array.dtype.kind in "US" and array.ndim:
        return object_array([str(item).encode() for item in array.ravel().tolist()]).reshape(array.shape)
    return object_array([value.encode() if isinstance(value, str) else dumps(value)])


def _names(names: Mapping[str, Any]) -> str:
    return ", ".join(escaped(name) for name in names) or "none"

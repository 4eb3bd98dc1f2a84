"""The Open Inference Protocol (v2) over the same endpoints: what a model is called, takes and gives, and one inference.

Shared by the REST edge (``http/forms.py``) and the gRPC one (``rpc/server.py``). Three kinds of endpoint:

- a text task takes ``text`` (BYTES, tokenized here), or the model's own tensors, which pass through;
- a model without a task passes through as it is;
- a ``Preprocess`` class gets ``{input name: nested lists}``; what it returns by name becomes outputs.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from time import perf_counter_ns
from typing import Any, Final

import numpy as np
import orjson
from numpy.typing import NDArray

from gateway.dataplane.routing.snapshot import Snapshot
from gateway.dataplane.submit import Via
from gateway.endpoints.endpoint import Endpoint, TensorHandler, TextHandler, translate
from gateway.errors import EndpointNotFound, InputRefused
from gateway.protocols.base import Header
from gateway.protocols.tensors import DTYPES, TensorRequest, flat_of, objects, shown, write_answer
from gateway.spec import normalize_url
from gateway.trace import Trace
from gateway.triton.port import Backend, TensorInfo
from gateway.triton.tensors import BYTES
from preprocessing.activations import sigmoid, softmax
from preprocessing.errors import PreprocessingError
from preprocessing.types import Prepared

Array = NDArray[Any]

PLATFORM: Final = "triton_gateway"
EXTENSIONS: Final = ("binary_tensor_data", "model_configuration", "model_repository", "statistics", "parameters")
_DATATYPES: Final = {("object" if dtype.kind == "O" else dtype.name): name for name, dtype in DTYPES.items()}
_PROTOCOL: Final = frozenset({"binary_data_output", "timeout", "priority"})
_SEQUENCE: Final = ("sequence_id", "sequence_start", "sequence_end")
_CLASSIFICATION: Final = "text-classification"
_EMBEDDINGS: Final = "sentence-embeddings"


# --- what there is ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ModelShape:
    """A model as the protocol describes it; shapes with the batch dimension, −1 where anything goes."""

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
        """Return a Triton model configuration that says the same, for clients that ask for one (perf_analyzer)."""
        skip = 1 if self.max_batch_size else 0
        return {
            "name": self.name,
            "platform": PLATFORM,
            "backend": PLATFORM,
            "max_batch_size": self.max_batch_size,
            "input": [{"name": n, "data_type": _config_type(t), "dims": list(s[skip:])} for n, t, s in self.inputs],
            "output": [{"name": n, "data_type": _config_type(t), "dims": list(s[skip:])} for n, t, s in self.outputs],
        }


def locate(path: str) -> tuple[str, str]:
    """Split what follows ``/v2/models/`` into the endpoint's path and the action: ``""``, ``infer``, ``ready``…

    Raises ``EndpointNotFound`` where it names none.
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


def settle(snapshot: Snapshot, path: str) -> str:
    """Return the url that ``path`` means: an endpoint without versions counts as version 1, as Triton numbers them."""
    if path.endswith("/1") and path not in snapshot.endpoints and path not in snapshot.pending:
        base = snapshot.endpoints.get(path[:-2])
        if base is not None and not base.identity.version:
            return path[:-2]
    return path


def find(snapshot: Snapshot, path: str) -> Endpoint:
    """Return an endpoint that stands for ``path`` (a canary's stable version). Raises as ``Snapshot.resolve``."""
    endpoint, _, stable = snapshot.resolve(path, "")
    return stable or endpoint


def describe(snapshot: Snapshot, path: str) -> ModelShape:
    """Return what the model at ``path`` takes and gives. Raises as ``Snapshot.resolve``."""
    endpoint = find(snapshot, path)
    identity = endpoint.identity
    if path in snapshot.canaries:
        name, versions = path, tuple(v.rpartition("/")[2] for v in snapshot.canaries[path].urls)
    else:
        name, versions = identity.endpoint, (identity.version or "1",)
    inputs, outputs, most = _tensors(endpoint)
    return ModelShape(name, versions, inputs, outputs, most)


async def is_ready(snapshot: Snapshot, path: str) -> bool:
    """True when the model at ``path`` can be called now, Triton included. Raises as ``Snapshot.resolve``."""
    endpoint = find(snapshot, path)
    backend, model = _behind(endpoint)
    return backend is None or await backend.is_ready(model)


def index(snapshot: Snapshot, *, only_ready: bool) -> list[dict[str, str]]:
    """Return the repository index: every configured version with its state."""
    found = [
        {"name": e.identity.endpoint, "version": e.identity.version or "1", "state": "READY"}
        for e in snapshot.endpoints.values()
    ]
    found += [{"name": name, "version": "", "state": "READY", "reason": "canary"} for name in snapshot.canaries]
    if not only_ready:
        found += [
            {
                "name": pending.url,
                "version": "",
                "state": "LOADING" if pending.state == "building" else "UNAVAILABLE",
                "reason": pending.reason,
            }
            for url, pending in snapshot.pending.items()
            if url not in snapshot.endpoints
        ]
    return sorted(found, key=lambda entry: (entry["name"], entry["version"]))


def statistics_of(snapshot: Snapshot, path: str, rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return those of all versions' statistics that are of ``path``; a canary's are its versions' under its own name.

    Raises as ``Snapshot.resolve``.
    """
    endpoint = find(snapshot, path)
    urls = snapshot.canaries[path].urls if path in snapshot.canaries else (endpoint.identity.url,)
    name = path if path in snapshot.canaries else endpoint.identity.endpoint
    wanted = {(e.endpoint, e.version or "1") for e in (snapshot.endpoints[url].identity for url in urls)}
    return [{**row, "name": name} for row in rows if (row["name"], row["version"]) in wanted]


def _tensors(endpoint: Endpoint) -> tuple[Any, Any, int]:
    if endpoint.text is not None:
        config = endpoint.text.processor.config
        fields = _text_fields(endpoint.text)
        required = fields[:1] if fields == ("text", "text_pair") else fields
        inputs = tuple((name, BYTES, (-1, 1)) for name in required)
        if endpoint.task == _CLASSIFICATION:
            labels = len(config.labels)
            outputs: tuple[Any, ...] = (
                ("logits", "FP32", (-1, labels)), ("probabilities", "FP32", (-1, labels)),
                ("label", BYTES, (-1, 1)), ("score", "FP32", (-1, 1)),
            )  # fmt: skip
        elif endpoint.task == _EMBEDDINGS:
            size = (config.embedding_size or 0) * max(len(config.pooling), 1)
            outputs = (("embedding", "FP32", (-1, size or -1)),)
        else:
            outputs = (("result", BYTES, (-1, 1)),)
        return inputs, outputs, config.max_rows
    if endpoint.task:
        return (("text", BYTES, (-1, 1)),), (("result", BYTES, (-1, 1)),), 0
    call = getattr(endpoint.handler, "call", None)
    if isinstance(endpoint.handler, TensorHandler) and call is not None:
        info = call.info
        outputs_of = [t for t in info.outputs if t.name in call.outputs] if info is not None else []
        return _infos(call.inputs), _infos(outputs_of), info.max_batch_size if info is not None else 0
    return (), (), 0


def _infos(tensors: Sequence[TensorInfo]) -> tuple[tuple[str, str, tuple[int, ...]], ...]:
    return tuple((t.name, _DATATYPES.get(t.dtype, BYTES), t.shape) for t in tensors)


def _behind(endpoint: Endpoint) -> tuple[Backend | None, str]:
    if endpoint.text is not None:
        return endpoint.text.backend, endpoint.text.model
    call = getattr(endpoint.handler, "call", None)
    return (call.backend, call.model) if call is not None else (None, "")


def _config_type(datatype: str) -> str:
    return "TYPE_STRING" if datatype == BYTES else f"TYPE_{datatype}"


def _text_fields(handler: TextHandler) -> tuple[str, ...]:
    return tuple(getattr(handler.processor.head, "text_fields", ("text", "text_pair")))


# --- one inference ----------------------------------------------------------------------------------------------------


class InferCall:
    """One inference; ``outputs`` are there after it was answered."""

    def __init__(self, request: TensorRequest) -> None:
        """Take a request that was read. Raises ``InputRefused`` for what is not offered."""
        if any(request.parameters.get(name) for name in _SEQUENCE):
            raise InputRefused("stateful sequences are not offered: requests of one sequence may meet other replicas")
        self.request = request
        self.path = request.path
        self.outputs: dict[str, Array] = {}

    @property
    def via(self) -> Via | None:
        """See ``Call.via``."""
        return self._infer

    @property
    def timeout(self) -> float | None:
        """Seconds the caller gives the request in the protocol's own parameter (microseconds), if any."""
        value = self.request.parameters.get("timeout")
        return value * 1e-6 if isinstance(value, int) and not isinstance(value, bool) and value > 0 else None

    def body(self, endpoint: Endpoint) -> object:
        """See ``Call.body``: none, tensors are asked for otherwise."""
        del endpoint
        return None

    def tell(self, answer: Any, endpoint: Endpoint, trace: Trace) -> tuple[list[Header], Any]:
        """See ``Call.tell``."""
        del answer, trace
        identity = endpoint.identity
        return write_answer(self.request, self.outputs, model=identity.endpoint, version=identity.version or "1")

    async def _infer(self, endpoint: Endpoint, trace: Trace, deadline: float) -> object:
        request = self.request
        if endpoint.text is not None:
            fields = _text_fields(endpoint.text)
            if request.inputs and all(name in fields for name in request.inputs):
                return await self._from_text(endpoint, fields, trace, deadline)
            processor = endpoint.text.processor
            if not request.inputs or any(name not in processor.input_names for name in request.inputs):
                raise InputRefused(
                    f"the inputs are {_listed(request.inputs)}; this endpoint takes {', '.join(fields)} (BYTES), "
                    f"or the model's own tensors {', '.join(processor.input_names)}"
                )
        elif endpoint.task:
            return await self._from_generation(endpoint, trace, deadline)
        backend, model = _behind(endpoint)
        if backend is None or not (endpoint.text is not None or isinstance(endpoint.handler, TensorHandler)):
            return await self._from_hook(endpoint, trace, deadline)
        if not request.inputs:
            raise InputRefused("the request has no inputs")
        trace.rows = max((len(array) for array in request.inputs.values() if array.ndim), default=1)
        started = perf_counter_ns()
        left = deadline - asyncio.get_running_loop().time()
        self.outputs = await backend.infer(model, request.inputs, request.outputs, timeout=left, request_id=request.id)
        trace.infer_ns = perf_counter_ns() - started
        return self.outputs

    async def _from_text(self, endpoint: Endpoint, fields: Sequence[str], trace: Trace, deadline: float) -> object:
        handler = endpoint.text
        assert handler is not None  # noqa: S101 - looked at by the caller
        body: dict[str, Any] = {name: _texts(name, array) for name, array in self.request.inputs.items()}
        parameters = {n: _plain(v) for n, v in self.request.parameters.items() if not _is_protocols(n)}
        if "text" not in fields:  # one question, one query: a list of them only where several were sent
            body = {
                name: texts[0] if len(texts) == 1 and name != "documents" else texts for name, texts in body.items()
            }
        outputs, prepared = await handler.run(
            {**body, "parameters": parameters} if parameters else body, trace, deadline
        )
        started = perf_counter_ns()
        try:
            answer = handler.processor.finish(outputs, prepared)
        except PreprocessingError as error:
            raise translate(error) from error
        known = {name: array for name, array in outputs.items() if len(array) == len(prepared.rows)}
        usual = _of_task(endpoint.task, handler, outputs, answer, prepared)
        self.outputs = self._chosen({**known, **usual}, usual, endpoint)
        trace.finish_ns = perf_counter_ns() - started
        return answer

    def generation_body(self) -> dict[str, Any]:
        """Return the body of a text-generation endpoint. Raises ``InputRefused`` for other tensors than ``text``."""
        if set(self.request.inputs) != {"text"}:
            raise InputRefused(f"the inputs are {_listed(self.request.inputs)}; this endpoint takes text (BYTES)")
        parameters = {n: _plain(v) for n, v in self.request.parameters.items() if not _is_protocols(n)}
        return {"text": _texts("text", self.request.inputs["text"]), "parameters": parameters}

    async def _from_generation(self, endpoint: Endpoint, trace: Trace, deadline: float) -> object:
        answer: Any = await endpoint.answer(self.generation_body(), trace, deadline)
        items = [orjson.dumps(result, option=orjson.OPT_SERIALIZE_NUMPY) for result in answer["results"]]
        found = {"result": objects(items).reshape(-1, 1)}
        self.outputs = self._chosen(found, found, endpoint)
        return answer

    async def _from_hook(self, endpoint: Endpoint, trace: Trace, deadline: float) -> object:
        body = {
            name: [_decoded(item) for item in array.ravel().tolist()] if array.dtype.kind == "O" else array.tolist()
            for name, array in self.request.inputs.items()
        }
        answer = await endpoint.answer(body, trace, deadline)
        found = answer if isinstance(answer, Mapping) else {"output": answer}
        tensors = {str(name): _as_tensor(value) for name, value in found.items()}
        self.outputs = self._chosen(tensors, tensors, endpoint)
        return answer

    def _chosen(self, known: Mapping[str, Array], usual: Mapping[str, Array], endpoint: Endpoint) -> dict[str, Array]:
        if not self.request.outputs:
            return dict(usual)
        for name in self.request.outputs:
            if name not in known:
                raise InputRefused(
                    f"unexpected inference output {shown(name)} for model {endpoint.identity.url}",
                    hint=f"there are {', '.join(known)}",
                )
        return {name: known[name] for name in self.request.outputs}


def _of_task(
    task: str, handler: TextHandler, outputs: Mapping[str, Array], answer: Mapping[str, Any], prepared: Prepared
) -> dict[str, Array]:
    """What a text task gives as tensors, one row per text."""
    if task == _EMBEDDINGS:
        return {"embedding": np.asarray(answer["embeddings"], dtype=np.float32)}
    results: Any = answer["results"] if prepared.is_batch else [answer]
    if task != _CLASSIFICATION:
        items = [orjson.dumps(result, option=orjson.OPT_SERIALIZE_NUMPY) for result in results]
        return {"result": objects(items).reshape(-1, 1)}
    logits = np.asarray(next(iter(outputs.values())), dtype=np.float32)
    activation = prepared.request.options.get("function_to_apply", handler.processor.config.activation)
    scores = logits if activation == "none" else sigmoid(logits) if activation == "sigmoid" else softmax(logits)
    return {
        "logits": logits,
        "probabilities": np.asarray(scores, dtype=np.float32),
        "label": objects([str(result["label"]).encode() for result in results]).reshape(-1, 1),
        "score": np.array([[result["score"]] for result in results], dtype=np.float32),
    }


def _texts(name: str, array: Array) -> list[str]:
    if array.dtype.kind != "O":
        raise InputRefused(f"input {shown(name)} must be BYTES")
    if array.ndim not in (1, 2) or (array.ndim == 2 and array.shape[1] != 1 and array.shape[0] != 1):
        raise InputRefused(f"input {shown(name)} has shape {list(array.shape)}; it takes [n, 1] or [n]")
    try:
        return [item.decode() for item in array.ravel().tolist()]
    except UnicodeDecodeError as error:
        raise InputRefused(f"input {shown(name)} is not valid UTF-8") from error


def _is_protocols(name: str) -> bool:
    return name in _PROTOCOL or name.startswith("triton_")


def _plain(value: object) -> object:
    # gRPC parameters are single values: lists come as JSON.
    if isinstance(value, str) and value[:1] == "[":
        try:
            return orjson.loads(value)
        except orjson.JSONDecodeError:
            return value
    return value


def _decoded(item: object) -> object:
    return item.decode("utf-8", "replace") if isinstance(item, bytes) else item


def _as_tensor(value: object) -> Array:
    """What a hook returned as a tensor: numbers as numbers, texts as BYTES, anything else as its JSON."""
    option = orjson.OPT_SERIALIZE_NUMPY | orjson.OPT_NON_STR_KEYS
    if isinstance(value, list | tuple):
        found = flat_of(value)
        if found is not None and any(isinstance(item, str) for item in found[0]):
            if all(isinstance(item, str) for item in found[0]):
                return objects([item.encode() for item in found[0]]).reshape(found[1])
            return objects([orjson.dumps(value, default=str, option=option)])
    try:
        array = np.asarray(value)
    except ValueError:
        array = np.empty(0, dtype=object)
    if array.dtype.kind in "biuf":
        return array if array.ndim else array.reshape(1)
    if array.dtype.kind in "US" and array.ndim:
        return objects([str(item).encode() for item in array.ravel().tolist()]).reshape(array.shape)
    return objects([value.encode() if isinstance(value, str) else orjson.dumps(value, default=str, option=option)])


def _listed(names: Mapping[str, Any]) -> str:
    return ", ".join(shown(name) for name in names) or "none"

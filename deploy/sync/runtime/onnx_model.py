"""An ONNX model on Triton's python backend: ONNX Runtime or OpenVINO behind ``execute``, for a Triton without those.

Copied as ``1/model.py`` into every model's folder by model sync (``model_folder/build``) and run by Triton's stub
process, so it imports nothing of ours: numpy, an engine and the stub's own module only. ``generate_model.py`` uses it.
Requests are run one by one: the gateway has joined already what is worth joining, and on a CPU a larger batch is hardly
faster. So none fails, or gets another shape, because of others.
Parameters of config.pbtxt: ``threads``, ``engine`` (``onnxruntime``, ``openvino``), ``precision`` (``bf16``, for
OpenVINO) and ``spinning`` (``true``, for ONNX Runtime).
"""

from __future__ import annotations

import ctypes
import functools
import importlib
import json
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

# The stub runs isolated and ignores PYTHONPATH; the launcher says where the packages are.
sys.path[:0] = [p for p in os.environ.get("TRITON_GATEWAY_SITE", "").split(os.pathsep) if p and p not in sys.path]

import numpy as np  # noqa: E402 - after the line above

NEEDS_NUMPY_1 = "start this Triton with Python 3.11 or 3.12 and 'numpy<2'"
_USED = b"used_dltensor"
"""What the capsule of a tensor is called once somebody has taken it over."""
_rename = ctypes.pythonapi.PyCapsule_SetName
_rename.argtypes = [ctypes.py_object, ctypes.c_char_p]


class Refused(Exception):
    """This request cannot be run; the message is for its sender."""


@dataclass(frozen=True, slots=True)
class Port:
    """An input or output as ONNX Runtime describes it: name, type (``tensor(string)``: texts), sizes and symbols."""

    name: str
    type: str
    shape: tuple[Any, ...]


class OpenVino:
    """A model in OpenVINO, called as an ONNX Runtime session is."""

    def __init__(self, path: Path, threads: int, precision: str) -> None:
        openvino = importlib.import_module("openvino")
        core = openvino.Core()
        properties = {
            "INFERENCE_NUM_THREADS": threads,
            "NUM_STREAMS": "1",
            "PERFORMANCE_HINT": "LATENCY",
            "INFERENCE_PRECISION_HINT": "bf16" if precision == "bf16" else "f32",
            # Instances are processes that know nothing of each other: pinned, all of them would take the first core.
            "ENABLE_CPU_PINNING": False,
        }
        model = core.compile_model(core.read_model(str(path)), "CPU", properties)
        self._request = model.create_infer_request()
        self._inputs = [_port(p) for p in model.inputs]
        self._outputs = [_port(p) for p in model.outputs]
        self._positions = {p.name: i for i, p in enumerate(self._outputs)}

    def get_inputs(self) -> list[Port]:
        """Describe the inputs."""
        return self._inputs

    def get_outputs(self) -> list[Port]:
        """Describe the outputs."""
        return self._outputs

    def run(self, names: Sequence[str], feeds: Mapping[str, Any]) -> list[Any]:
        """Run one batch and return the named outputs, each in memory of its own."""
        self._request.infer(dict(feeds), share_inputs=True)
        return [self._request.get_output_tensor(self._positions[n]).data.copy() for n in names]


def _port(port: Any) -> Port:
    # OpenVINO does not keep ONNX' names of dynamic dimensions; text inputs are as long as each other.
    shape = tuple(f"axis{i}" if d.is_dynamic else d.get_length() for i, d in enumerate(port.get_partial_shape()))
    return Port(port.get_any_name(), f"tensor({port.get_element_type().get_type_name()})", shape)


class Runner:
    """One session, and what Triton's tensors and its own differ in."""

    def __init__(self, session: Any, config: Mapping[str, Any]) -> None:
        self._session = session
        self._is_batched = int(config.get("max_batch_size") or 0) > 0
        self._inputs = {i.name: i for i in session.get_inputs()}
        self._outputs = tuple(o.name for o in session.get_outputs())
        self._answered = tuple(o["name"] for o in config.get("output") or ()) or self._outputs

    @property
    def input_names(self) -> tuple[str, ...]:
        """Names of the graph's inputs."""
        return tuple(self._inputs)

    def answer(self, feeds: Mapping[str, Any], outputs: Sequence[str] = ()) -> dict[str, Any]:
        """Answer one request with these outputs, or all. Raises ``Refused``, and what the engine raises."""
        given: dict[str, Any] = {}
        for name, feed in feeds.items():
            given[name] = _decoded(name, feed) if self._inputs[name].type == "tensor(string)" else feed
            if not self._is_batched and feed.shape == (1,) and not self._inputs[name].shape:
                given[name] = given[name].reshape(())  # Triton has no tensors without dimensions
        wanted = [name for name in outputs if name in self._outputs] or list(self._answered)
        rows = next(iter(given.values())).shape[0] if self._is_batched else None  # Triton takes only equal numbers
        found = dict(zip(wanted, self._session.run(wanted, given), strict=True))
        for name, output in found.items():
            if rows is not None and (output.ndim == 0 or output.shape[0] != rows):
                raise Refused(f"output {name} has shape {list(output.shape)} for a batch of {rows} rows")
        return {name: _sent(output) for name, output in found.items()}


def load_session(path: Path, parameters: Mapping[str, str]) -> Any:
    """Load a graph into ONNX Runtime; raises what that raises."""
    runtime = importlib.import_module("onnxruntime")
    runtime.disable_telemetry_events()  # it would write a device id and an event store below the home directory
    options = runtime.SessionOptions()
    options.intra_op_num_threads = int(parameters.get("threads") or 1)
    options.inter_op_num_threads = 1
    options.log_severity_level = 3
    # Spinning threads of several instances would take the cores from each other and from the gateway.
    spinning = parameters.get("spinning", "").lower() in ("1", "true", "yes")
    options.add_session_config_entry("session.intra_op.allow_spinning", "1" if spinning else "0")
    return runtime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])


def _openvino(path: Path, parameters: Mapping[str, str]) -> Any:
    return OpenVino(path, int(parameters.get("threads") or 1), parameters.get("precision", ""))


ENGINES: Mapping[str, tuple[str, Callable[[Path, Mapping[str, str]], Any]]] = {
    "onnxruntime": ("ONNX Runtime", load_session), "openvino": ("OpenVINO", _openvino),
}  # fmt: skip
"""What ``parameters.engine`` can name, which is also the package it needs: for people, and how it loads a file."""


def open_session(engine: str, path: Path, parameters: Mapping[str, str]) -> Any:
    """Load a graph into one of ``ENGINES``. Raises ``Refused`` with the reason."""
    if engine not in ENGINES:
        raise Refused(f"engine {engine!r} is not one of {', '.join(ENGINES)}")
    name, load = ENGINES[engine]
    try:
        return load(path, parameters)
    except ModuleNotFoundError as error:
        raise Refused(f"the model runs on {name}, which is not installed here; run `pip install {engine}`") from error
    except Exception as error:
        raise Refused(f"{name} cannot load the model: {first_line(error)}") from error


def read_arguments(args: Mapping[str, str]) -> tuple[dict[str, Any], dict[str, str], Path]:
    """Return the configuration, its parameters and the file of a model that Triton initializes."""
    config = json.loads(args["model_config"])
    parameters = {k: str(v.get("string_value", "")) for k, v in (config.get("parameters") or {}).items()}
    return config, parameters, Path(args["model_repository"]) / args["model_version"] / "model.onnx"


class TritonPythonModel:
    """What Triton's python backend calls; the class name and methods are Triton's."""

    def initialize(self, args: Mapping[str, str]) -> None:
        """Load the model; raising here makes the load fail with this message."""
        self._backend = importlib.import_module("triton_python_backend_utils")
        config, parameters, path = read_arguments(args)
        self._passes_arrays = passes_arrays(self._backend)
        texts = [t["name"] for t in (*config["input"], *config["output"]) if t["data_type"] == "TYPE_STRING"]
        if texts and not self._passes_arrays:
            raise self._backend.TritonModelException(
                f"{texts[0]} holds texts, which this stub cannot pass with numpy {np.__version__}: {NEEDS_NUMPY_1}"
            )
        try:
            session = open_session(parameters.get("engine") or "onnxruntime", path, parameters)
        except Refused as error:
            raise self._backend.TritonModelException(str(error)) from error
        self._runner = Runner(session, config)

    def execute(self, requests: Sequence[Any]) -> list[Any]:
        """Answer every request of one call, each with its outputs or its own error."""
        return [self._answered(request) for request in requests]

    def _answered(self, request: Any) -> Any:
        backend = self._backend
        feeds: dict[str, Any] = {}
        for name in self._runner.input_names:
            tensor = backend.get_input_tensor_by_name(request, name)
            if tensor is not None:
                feeds[name] = tensor.as_numpy() if self._passes_arrays else np.from_dlpack(tensor)
        make = backend.Tensor if self._passes_arrays else functools.partial(as_tensor, backend)
        try:
            outputs = self._runner.answer(feeds, request.requested_output_names())
            return backend.InferenceResponse([make(n, v) for n, v in outputs.items()])
        except Exception as error:  # noqa: BLE001 - ORT raises several unrelated types; the sender gets the reason
            refusal = backend.TritonError(first_line(error), backend.TritonError.INVALID_ARG)
            return backend.InferenceResponse(output_tensors=[], error=refusal)

    def finalize(self) -> None:
        """Release the session's memory."""
        del self._runner


def passes_arrays(backend: Any) -> bool:
    """Say whether the stub and this numpy understand each other's arrays.

    A stub that was built for numpy 1 takes the sizes of numpy 2's elements for 0: it would answer with empty tensors,
    without an error. Python 3.13 has no numpy 1.
    """
    return bool((as_tensor(backend, "probe", np.arange(2)).as_numpy() == [0, 1]).all())


def as_tensor(backend: Any, name: str, array: Any) -> Any:
    """Return a tensor of the stub's that holds ``array`` (no texts), handed over as DLPack, which says all sizes."""
    capsule = array.__dlpack__()
    tensor = backend.Tensor.from_dlpack(name, capsule)
    _rename(capsule, _USED)  # the stub calls it otherwise, and numpy then complains for each
    return tensor


def _sent(output: Any) -> Any:
    if output.dtype.kind in "OU":
        texts = np.array([str(v).encode() for v in output.reshape(-1)], dtype=np.object_)
        return texts.reshape(output.shape or (1,))
    return np.ascontiguousarray(output)


def _decoded(name: str, feed: Any) -> Any:
    try:
        texts = [v.decode() if isinstance(v, bytes) else str(v) for v in feed.reshape(-1)]
    except UnicodeDecodeError as error:
        raise Refused(f"input {name} is not UTF-8: {error}") from error
    return np.array(texts, dtype=np.object_).reshape(feed.shape)


def first_line(error: Exception) -> str:
    """Return the first line of an error, shortened."""
    text = str(error).strip()
    return (text.splitlines()[0] if text else type(error).__name__)[:400]

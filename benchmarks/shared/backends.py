"""The models on which every system is measured, in one real embedded Triton.

``instant`` answers at once and isolates the gateway; ``vectors`` does the same with an embedding, and ``static`` in
ONNX Runtime: the mean of one vector per token. ``gpu`` takes 4 ms per call + 0.05 ms per row, like a GPU that gains
from batching. ``large`` takes 20 ms + 1.5 ms per row, like a GPU with a larger model, so that ten times
its capacity leaves a core to the sender. ``minilm`` is the real all-MiniLM-L6-v2 in ONNX Runtime. The same models serve
every system under the names that it uses. Ensembles put a tokenizer of Triton's Python backend in front of them.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.shared import machine
from deploy.sync.client import AdminClient
from deploy.sync.model_folder.build import Builder
from deploy.sync.model_folder.execution import Tuning
from deploy.tritonserver.launcher import detect_server
from gateway.spec import EndpointSpec, ModelRecord
from tests import processes
from tests.triton_server import TritonServer

_PROGRAMS = Path(__file__).parent / "triton_models"
TOKENS = ("input_ids", "attention_mask")
MAX_BATCH = 64
"""Most rows in one call of a model: what Triton's dynamic batcher may merge."""


@dataclass(frozen=True, slots=True)
class Backend:
    """One kind of model. ``inputs`` are int64 [rows, tokens]; ``output`` is float32 [rows, width]."""

    name: str
    inputs: tuple[str, ...]
    output: str
    width: int
    call_ms: float = 0.0
    row_ms: float = 0.0
    is_real: bool = False
    weights: tuple[float, float] = (0.9, 0.1)
    """Canary weights of the gateway's two versions. One GPU serves one version, so there the second one has weight 0.
    """


BACKENDS: dict[str, Backend] = {
    "instant": Backend("instant", TOKENS, "logits", 2),
    "vectors": Backend("vectors", TOKENS, "sentence_embedding", 384),
    "static": Backend("static", TOKENS, "sentence_embedding", 384, is_real=True, weights=(1.0, 0.0)),
    "gpu": Backend("gpu", TOKENS, "logits", 2, call_ms=4.0, row_ms=0.05, weights=(1.0, 0.0)),
    "large": Backend("large", TOKENS, "logits", 2, call_ms=20.0, row_ms=1.5, weights=(1.0, 0.0)),
    "minilm": Backend(
        "minilm", (*TOKENS, "token_type_ids"), "sentence_embedding", 384, is_real=True, weights=(1.0, 0.0)
    ),
}


class Triton:
    """The embedded Triton of a run. Loads models on demand and returns their statistics."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._engine = detect_server().engine
        self._repository = folder / "models"
        shutil.rmtree(self._repository, ignore_errors=True)
        self._repository.mkdir(parents=True)
        self._loaded: set[str] = set()

    def start(self) -> None:
        """Start it and wait until it is live."""
        self._server = TritonServer(self._folder, self._repository)
        self._admin = AdminClient(self.grpc, load_timeout_s=120)

    def stop(self) -> None:
        """Stop it with everything that it started."""
        self._server.stop()

    @property
    def grpc(self) -> str:
        """The gRPC address, ``host:port``."""
        return self._server.grpc

    @property
    def http(self) -> str:
        """The HTTP address, ``host:port``."""
        return self._server.http

    @property
    def pid(self) -> int:
        """The server's process id; its stubs are its children."""
        return self._server.pid

    def pin(self, cores: Iterable[int]) -> None:
        """Bind the server and its stubs to ``cores``."""
        machine.pin([self.pid], cores)

    def version(self) -> str:
        """Return Triton's own version."""
        return str(json.loads(processes.ask(f"http://{self.http}/v2"))["version"])

    def serve(self, name: str, backend: Backend, bundle: Path) -> None:
        """Load ``backend``'s model under ``name``, unless it is already loaded."""
        if backend.is_real:
            tensors = EndpointSpec(name, name, "", "triton", "m")
            build = Builder(self._engine, Tuning()).build(
                name, tensors, ModelRecord("m", "m", bundle.as_uri(), "onnx"), bundle
            )
            self._write(name, build.config, build.texts, {path: bundle / at for path, at in build.linked.items()})
        else:
            self._write(name, scripted_config(name, backend), {"1/model.py": program("fixed_model")}, {})
        self._load(name)

    def serve_ensemble(self, name: str, backend: Backend, model: str, *, folder: Path) -> None:
        """Load a tokenizer over ``folder``, and an ensemble of it and ``model``."""
        step = f"{name}-tokenizer"
        self._write(step, tokenizer_config(step, backend, folder), {"1/model.py": program("tokenizer_model")}, {})
        self._load(step)
        self._write(name, ensemble_config(name, backend, step, model), {"1/.keep": ""}, {})
        self._load(name)

    def statistics(self) -> dict[str, tuple[int, int, int]]:
        """Return (rows, calls of the model, failed requests) of every loaded model so far."""
        found = {}
        stats: Any = json.loads(processes.ask(f"http://{self.http}/v2/models/stats"))["model_stats"]
        for model in stats:
            failed = int(model["inference_stats"]["fail"]["count"])
            found[model["name"]] = (int(model["inference_count"]), int(model["execution_count"]), failed)
        return found

    def _write(self, name: str, config: str, texts: Mapping[str, str], files: Mapping[str, Path]) -> None:
        folder = self._repository / name
        folder.mkdir(exist_ok=True)
        for path, text in {**texts, "config.pbtxt": config}.items():
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
            (folder / path).write_text(text)
        for path, source in files.items():
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(source, folder / path)

    def _load(self, name: str) -> None:
        if name not in self._loaded:
            self._admin.load(name)
            self._loaded.add(name)


def mean_batch(
    before: Mapping[str, tuple[int, int, int]], after: Mapping[str, tuple[int, int, int]], models: Sequence[str]
) -> float:
    """Return rows per call of ``models`` between two statistics; 0 if there was no call."""
    rows = calls = 0
    for model in models:
        first, last = before.get(model, (0, 0, 0)), after.get(model, (0, 0, 0))
        rows += last[0] - first[0]
        calls += last[1] - first[1]
    return rows / calls if calls else 0.0


def scripted_config(name: str, backend: Backend) -> str:
    """Return config.pbtxt of a model that takes its time and answers a constant.

    Ragged batches let Triton merge requests of different lengths for every system, which a transformer's own
    configuration mostly would not. This favours systems that send one row at a time.
    """
    inputs = ", ".join(
        f'{{ name: "{n}" data_type: TYPE_INT64 dims: [ -1 ] allow_ragged_batch: true }}' for n in backend.inputs
    )
    return f"""name: "{name}"
backend: "python"
max_batch_size: {MAX_BATCH}
input [ {inputs} ]
output [ {{ name: "{backend.output}" data_type: TYPE_FP32 dims: [ {backend.width} ] }} ]
dynamic_batching {{ }}
instance_group [ {{ count: 1 kind: KIND_CPU }} ]
{
        _parameters(
            output=backend.output,
            width=backend.width,
            call_ms=backend.call_ms,
            row_ms=backend.row_ms,
        )
    }
"""


def tokenizer_config(name: str, backend: Backend, folder: Path) -> str:
    """Return config.pbtxt of a tokenizer that Triton batches."""
    outputs = ", ".join(f'{{ name: "{n}" data_type: TYPE_INT64 dims: [ -1 ] }}' for n in backend.inputs)
    return f"""name: "{name}"
backend: "python"
max_batch_size: {MAX_BATCH}
input [ {{ name: "TEXT" data_type: TYPE_STRING dims: [ 1 ] }} ]
output [ {outputs} ]
dynamic_batching {{ }}
instance_group [ {{ count: 1 kind: KIND_CPU }} ]
{_parameters(folder=folder, outputs=",".join(backend.inputs))}
"""


def ensemble_config(name: str, backend: Backend, step: str, model: str) -> str:
    """Return config.pbtxt of tokenizer and model as one."""
    tokens = " ".join(f'output_map {{ key: "{n}" value: "{n}" }}' for n in backend.inputs)
    taken = " ".join(f'input_map {{ key: "{n}" value: "{n}" }}' for n in backend.inputs)
    return f"""name: "{name}"
platform: "ensemble"
max_batch_size: {MAX_BATCH}
input [ {{ name: "TEXT" data_type: TYPE_STRING dims: [ 1 ] }} ]
output [ {{ name: "{backend.output}" data_type: TYPE_FP32 dims: [ {backend.width} ] }} ]
ensemble_scheduling {{ step [
  {{ model_name: "{step}" model_version: -1 input_map {{ key: "TEXT" value: "TEXT" }} {tokens} }},
  {{ model_name: "{model}" model_version: -1 {taken}
     output_map {{ key: "{backend.output}" value: "{backend.output}" }} }}
] }}
"""


def _parameters(**values: object) -> str:
    return "\n".join(
        f'parameters {{ key: "{k}" value {{ string_value: {json.dumps(str(v))} }} }}' for k, v in values.items()
    )


def program(name: str) -> str:
    """Return a model's program for Triton's python backend, one of ``triton_models``."""
    return (_PROGRAMS / f"{name}.py").read_text()

"""What integration tests share: the real servers they run against, one per test session, and tiny real models."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc as triton
from numpy.typing import NDArray
from onnx import TensorProto, helper

from deploy.sync.client import AdminClient
from deploy.sync.model_folder.build import Builder
from deploy.sync.model_folder.execution import Tuning
from deploy.sync.repository import ModelRepository, OnDisk
from gateway.spec import EndpointSpec, ModelRecord
from tests import tiny
from tests.control_planes import RunningControlPlane, control_plane
from tests.stock import Client
from tests.triton_server import TritonServer
from tests.waiting import LIMIT_S


def token_model(path: Path, *, rows: int = 10) -> Path:
    """Save a model of token ids and mask: ``tokens`` (per token), ``logits`` (their sum), ``longest`` (axis 1 seen).

    Token ``i`` is worth ``i``; ids of ``rows`` and above are out of range, so a request that holds one is poisoned.
    ``longest`` tells how long the batch was in which a row was run: a test can see who shared a call.
    """
    nodes = [
        helper.make_node("Gather", ["table", "input_ids"], ["worth"]),
        helper.make_node("Cast", ["attention_mask"], ["mask"], to=TensorProto.FLOAT),
        helper.make_node("Mul", ["worth", "mask"], ["tokens"]),
        helper.make_node("ReduceSum", ["tokens", "one"], ["logits"], keepdims=1),
        helper.make_node("Shape", ["input_ids"], ["length"], start=1, end=2),
        helper.make_node("Shape", ["input_ids"], ["batch"], start=0, end=1),
        helper.make_node("Concat", ["batch", "one"], ["column"], axis=0),
        helper.make_node("Expand", ["length", "column"], ["longest"]),
    ]
    outputs = [
        ("logits", TensorProto.FLOAT, ("batch", 1)), ("tokens", TensorProto.FLOAT, ("batch", "sequence")),
        ("longest", TensorProto.INT64, ("batch", 1)),
    ]  # fmt: skip
    return tiny.saved(path, nodes, tiny.TOKENS, outputs, table=np.arange(rows, dtype=np.float32), one=[1])


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningControlPlane]:
    """A control plane for all tests that have a serving Task of their own and need no other to be away."""
    with control_plane(tmp_path_factory.mktemp("controlplane")) as running:
        yield running


@pytest.fixture
def client(server: RunningControlPlane, tmp_path: Path) -> Iterator[Client]:
    """A client of it in the test's folder; this process is one too."""
    made = Client(server, tmp_path)
    with made.here():
        yield made


@pytest.fixture(scope="session")
def make_token_model() -> Callable[..., Path]:
    """``token_model`` as a fixture: saves the tiny model at a path."""
    return token_model


def place(
    repository: ModelRepository, name: str, folder: Path, endpoint: EndpointSpec | None = None,
    tuning: Tuning | None = None,
) -> None:  # fmt: skip
    """Write the model in ``folder`` to the repository as model sync does, under Triton's name of it."""
    builder = Builder("python", tuning or Tuning())
    endpoint = endpoint or EndpointSpec(name, name, "", "triton", "m")
    build = builder.build(name, endpoint, ModelRecord("m", "m", folder.as_uri(), "onnx"), folder)
    on_disk = OnDisk(name, name, "m", builder.recipe, build.instances)
    repository.write(on_disk, build.config, folder, build.linked, build.texts)


@dataclass
class EmbeddedTriton:
    """The embedded Triton, live, with a model repository and its admin client. ``grpc`` is ``host:port``."""

    grpc: str
    http: str
    metrics: str
    server: TritonServer
    repository: ModelRepository
    admin: AdminClient
    folder: Path
    _numbers: Iterator[int] = field(default_factory=itertools.count)

    def serve(
        self,
        model: Path,
        *,
        name: str = "",
        inputs: Sequence[Any] = (),
        outputs: Sequence[Any] = (),
        pbtxt: str = "",
        endpoint: EndpointSpec | None = None,
    ) -> str:
        """Write the model in folder ``model`` (or the file) to the repository, load it, return Triton's name of it.

        ``endpoint`` is used instead of one made of ``inputs``, ``outputs`` and ``pbtxt``.
        """
        name = name or f"test-{next(self._numbers)}"
        endpoint = endpoint or EndpointSpec(
            name, name, "", "triton", "m", inputs=tuple(inputs), outputs=tuple(outputs), auxiliary_pbtxt=pbtxt
        )
        place(self.repository, name, model if model.is_dir() else model.parent, endpoint)
        self.admin.load(name)
        return name

    def withdraw(self, name: str) -> None:
        """Unload a model and remove it."""
        self.admin.unload(name)
        self.repository.remove(name)


@pytest.fixture(scope="session")
def embedded_triton(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedTriton]:
    """The real tritonserver of the nvidia-pytriton wheel, on free ports, stopped with the session."""
    folder = tmp_path_factory.mktemp("triton")
    repository = ModelRepository(folder / "models")
    repository.open()
    server = TritonServer(folder, repository.root)
    try:
        admin = AdminClient(server.grpc, load_timeout_s=LIMIT_S)
        yield EmbeddedTriton(server.grpc, server.http, server.metrics, server, repository, admin, folder)
        admin.close()
    finally:
        server.stop()
    repository.close()


def ask_triton(grpc: str, name: str, feeds: Mapping[str, NDArray[Any]], outputs: Sequence[str] = ()) -> dict[str, Any]:
    """Call a model of the Triton at ``grpc`` with named arrays; returns the outputs asked for, or all."""
    tensors = []
    for key, value in feeds.items():
        dtype = {"int64": "INT64", "float32": "FP32", "object": "BYTES"}[value.dtype.name]
        tensors.append(triton.InferInput(key, value.shape, dtype))
        tensors[-1].set_data_from_numpy(value)
    with triton.InferenceServerClient(grpc) as client:
        reply = client.infer(name, tensors, outputs=[triton.InferRequestedOutput(o) for o in outputs] or None)
    return {output.name: reply.as_numpy(output.name) for output in reply.get_response().outputs}


@pytest.fixture(scope="session")
def token_inputs() -> Callable[[Sequence[int]], dict[str, NDArray[Any]]]:
    """Tensors of one row of ids, all of them unmasked."""

    def make(ids: Sequence[int]) -> dict[str, NDArray[Any]]:
        row = np.array([ids], dtype=np.int64)
        return {"input_ids": row, "attention_mask": np.ones_like(row)}

    return make

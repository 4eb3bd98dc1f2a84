"""Every system under test: how it is started for a backend, how it is called, and which processes belong to it.

``SYSTEMS`` is the only list of them. If a system cannot be installed or started, the run reports the reason and
continues without it.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Final

from benchmarks.peers.registered import Registered, hooked
from benchmarks.shared.backends import Backend, Triton
from benchmarks.shared.command import ROOT
from tests import environments, processes
from tests.stock import Client

PROGRAMS = Path(__file__).parent / "programs"

SERVER_CORE, OTHER_CORE = 0, 1
"""The server under test has the first core; Triton, the load and everything else share the second."""


class NotAvailable(Exception):
    """A system that cannot take part in this run; the message says why."""


@dataclass(slots=True)
class Bench:
    """What the systems of a run share: Triton, a client of the registry, folders."""

    state: Path
    triton: Triton
    client: Client
    registered: Registered
    bundles: Mapping[str, Path]
    say: Callable[[str], None]

    def python(self, name: str) -> Path:
        """Return the Python of a peer's environment. Raises ``NotAvailable``."""
        try:
            return environments.python(self.state / "environments", name, self.say)
        except environments.CannotInstall as error:
            raise NotAvailable(f"its environment cannot be installed: {error}") from error

    def environment(self, backend: Backend, **variables: object) -> dict[str, str]:
        """Return the environment of a server under test."""
        bundle = self.bundles[backend.name]
        return {
            **self.client.environment,
            "PYTHONPATH": str(ROOT),
            "BENCH_TOKENIZER": str(bundle / "tokenizer.json"),
            "BENCH_FOLDER": str(bundle),
            "BENCH_INPUTS": str(len(backend.inputs)),
            **{name: str(value) for name, value in variables.items()},
        }

    def start(
        self, system: str, argv: Sequence[str], env: Mapping[str, str], cores: Sequence[int] = (SERVER_CORE,)
    ) -> processes.Server:
        """Start a server under test on its cores, in an empty folder, because files there could be imported."""
        folder = self.state / "work"
        folder.mkdir(exist_ok=True)
        return processes.Server(
            system, argv, env=env, cores=cores, log=self.state / "logs" / f"{system}.log", cwd=folder
        )


@dataclass(slots=True)
class Running:
    """A started system: its address and request form, its processes, and the models that it calls."""

    url: str
    body: Callable[[str], bytes]
    server: processes.Server | None
    models: Sequence[str]
    triton_cores: Sequence[int] = (OTHER_CORE,)
    seen: set[Path] = field(default_factory=set)
    """Files of bodies that it has already received."""

    @property
    def pids(self) -> list[int]:
        """Roots of the processes in front of Triton."""
        return [self.server.pid] if self.server else []

    def stop(self) -> None:
        """Stop what was started."""
        if self.server:
            self.server.stop()


Start = Callable[[Bench, Backend], Running]


@dataclass(frozen=True, slots=True)
class System:
    """One row of the table."""

    name: str
    title: str
    start: Start = field(repr=False)
    uses_triton: bool = True


def text_body(text: str) -> bytes:
    """Return ``{"text": …}``."""
    return json.dumps({"text": text}).encode()


def _instances_body(text: str) -> bytes:
    return json.dumps({"instances": [text]}).encode()


def _gateway(
    bench: Bench,
    backend: Backend,
    *,
    name: str = "gateway",
    workers: int = 1,
    n_cores: int = 1,
    settings: Mapping[str, str] | None = None,
    checkout: Path = ROOT,
    python: Path | None = None,
) -> Running:
    """Start the gateway as a user does: it follows the serving Task and is called on the canary route."""
    models = bench.registered.triton_names[backend.name]
    for model in models:
        bench.triton.serve(model, backend, bench.bundles[backend.name])
    port = processes.free_port()
    env = bench.environment(
        backend,
        TRITON_GATEWAY_PORT=port, TRITON_GATEWAY_WORKERS=workers, TRITON_GATEWAY_TRITON_GRPC=bench.triton.grpc,
        TRITON_GATEWAY_TRITON_HTTP=bench.triton.http.rpartition(":")[2],
        TRITON_GATEWAY_STATE_DIR=bench.state / "registry" / name, TRITON_GATEWAY_LOG_FORMAT="text",
        CLEARML_SERVING_TASK_ID=bench.registered.gateway_task, PYTHONPATH=checkout, **(settings or {}),
    )  # fmt: skip
    cores = range(n_cores)
    server = bench.start(name, [str(python or sys.executable), "-m", "gateway"], env, cores)
    return Running(f"http://127.0.0.1:{port}/serve/{backend.name}", text_body, server, models)


def _form(bench: Bench, backend: Backend, *, name: str, path: str, body: Callable[[str], bytes]) -> Running:
    """Call the gateway with another protocol than its own."""
    running = _gateway(bench, backend, name=f"gateway_{name}")
    address = running.url.partition("/serve/")[0]
    running.url, running.body = address + path.format(name=backend.name), body
    return running


def _inputs_body(text: str) -> bytes:
    return json.dumps({"inputs": text}).encode()


def _oip_body(text: str) -> bytes:
    tensor = {"name": "text", "datatype": "BYTES", "shape": [1, 1], "data": [text]}
    return json.dumps({"inputs": [tensor]}).encode()


def _openai_body(text: str) -> bytes:
    return json.dumps({"model": "vectors", "input": text}).encode()


FORMS: Final = {
    "hf": ("Hugging Face's", "/serve/{name}", _inputs_body),
    "openai": ("OpenAI's", "/v1/embeddings", _openai_body),
    "kserve": ("KServe's v1", "/v1/models/{name}:predict", _instances_body),
    "oip": ("the Open Inference Protocol's", "/v2/models/{name}/infer", _oip_body),
}
"""Short name of a protocol → its title, path and body; the system is ``gateway_`` and the name."""


NO_WORD_CACHE: Final = {"TRITON_GATEWAY_WORD_CACHE_WORDS": "0"}
NOW: Final = "gateway"
BEFORE: Final = "gateway_before"


def another_checkout(checkout: Path, name: str = BEFORE, *, has_word_cache: bool = True) -> System:
    """Return the gateway of another checkout as a system, run by that checkout's ``.venv`` if it has one.

    Raises ``ValueError`` if it is no checkout of this project.
    """
    if not (checkout / "gateway" / "__init__.py").is_file():
        raise ValueError(f"{checkout} is no checkout of this project: `git worktree add FOLDER COMMIT` makes one")
    python = checkout / ".venv" / "bin" / "python"
    settings = {} if has_word_cache else NO_WORD_CACHE

    def begin(bench: Bench, backend: Backend) -> Running:
        own = python if python.exists() else None
        return _gateway(bench, backend, name=name, settings=settings, checkout=checkout, python=own)

    return System(name, f"the other checkout{'' if has_word_cache else ', word cache off'}", begin)


def _clearml(bench: Bench, backend: Backend) -> Running:
    python = bench.python("clearml")
    model = hooked(backend)
    bench.triton.serve(model, backend, bench.bundles[backend.name])
    port = processes.free_port()
    env = bench.environment(
        backend,
        CLEARML_SERVING_TASK_ID=bench.registered.clearml_task, CLEARML_DEFAULT_TRITON_GRPC_ADDR=bench.triton.grpc,
        CLEARML_DEFAULT_METRIC_LOG_FREQ="0", CLEARML_BKG_THREAD_REPORT="1",
        CLEARML_SKIP_PIP_FREEZE="1", PYTHONPATH="",
    )  # fmt: skip
    argv = [
        str(python), "-m", "uvicorn", "clearml_serving.serving.main:app", "--host", processes.LOOPBACK, "--port",
        str(port), "--loop", "uvloop", "--http", "httptools", "--log-level", "warning",
    ]  # fmt: skip
    server = bench.start("clearml_lean", argv, env)
    return Running(f"http://127.0.0.1:{port}/serve/{model}", text_body, server, [model])


def _kserve(bench: Bench, backend: Backend) -> Running:
    python = bench.python("kserve")
    model = f"kserve-{backend.name}"
    bench.triton.serve(model, backend, bench.bundles[backend.name])
    port = processes.free_port()
    env = bench.environment(backend, BENCH_MODEL=model, PYTHONPATH="")
    argv = [
        str(python), str(PROGRAMS / "kserve_transformer.py"), "--http_port", str(port), "--enable_grpc", "False",
        "--predictor_host", bench.triton.grpc, "--predictor_protocol", "grpc-v2", "--model_name", "bench",
    ]  # fmt: skip
    server = bench.start("kserve", argv, env)
    return Running(f"http://127.0.0.1:{port}/v1/models/bench:predict", _instances_body, server, [model])


def _ensemble(bench: Bench, backend: Backend) -> Running:
    name = f"ensemble-{backend.name}"
    model = f"{name}-model"
    bench.triton.serve(model, backend, bench.bundles[backend.name])
    bench.triton.serve_ensemble(name, backend, model, folder=bench.bundles[backend.name])

    def body(text: str) -> bytes:
        return json.dumps({"inputs": [{"name": "TEXT", "shape": [1, 1], "datatype": "BYTES", "data": [text]}]}).encode()

    # everything happens inside Triton, so it gets the gateway's core as well
    return Running(f"http://{bench.triton.http}/v2/models/{name}/infer", body, None, [model], (SERVER_CORE, OTHER_CORE))


SYSTEMS: dict[str, System] = {
    system.name: system
    for system in (
        System("gateway", "triton-gateway, all features on, canary route", lambda b, k: _gateway(b, k)),
        System("gateway_nocache", "triton-gateway, word cache off",
               lambda b, k: _gateway(b, k, name="gateway_nocache", settings=NO_WORD_CACHE)),
        System("gateway_w2", "triton-gateway, 2 workers on 2 cores",
               lambda b, k: _gateway(b, k, name="gateway_w2", workers=2, n_cores=2)),
        *(
            System(f"gateway_{name}", f"triton-gateway, asked in {title} form",
                   partial(_form, name=name, path=path, body=body))
            for name, (title, path, body) in FORMS.items()
        ),
        System("clearml_lean", "clearml-serving 1.3.5, hook on tokenizers", _clearml),
        System("kserve", "KServe transformer, tokenizers, grpc-v2", _kserve),
        System("ensemble_lean", "Triton ensemble, tokenizers, dynamic batching",
               _ensemble),
    )
}  # fmt: skip

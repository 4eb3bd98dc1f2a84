"""Runs a ``Preprocess`` class on one body on this machine, as a gateway would, and reports what each stage did.

Public: ``deploy`` may import it (``triton-gateway hook test`` does). The code runs in a hook process with a gateway's
limits. The model of an ONNX bundle runs in ONNX Runtime instead of Triton. ``send_request`` sends to a gateway.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import importlib
import re
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, cast

import numpy as np
import orjson
from numpy.typing import NDArray

from gateway.control import packages
from gateway.errors import OF_CALLERS, ControlError, DeadlineExceeded, GatewayError
from gateway.handlers.hook import HookHandler
from gateway.handlers.tensors import TritonCall
from gateway.hooks.engines import ENGINES
from gateway.hooks.executor import ProcessExecutor
from gateway.hooks.json_form import to_json
from gateway.hooks.pool import HookPool, PoolLimits
from gateway.hooks.process import Program
from gateway.trace import Trace
from gateway.triton.port import Backend, TensorInfo
from preprocessing.errors import PreprocessingError
from preprocessing.processor import TextProcessor

SendRequest = Callable[[str, "str | None", Any], Awaitable[Any]]

_TYPES: Final = {
    "tensor(float)": "float32", "tensor(double)": "float64", "tensor(float16)": "float16", "tensor(int64)": "int64",
    "tensor(int32)": "int32", "tensor(int8)": "int8", "tensor(uint8)": "uint8", "tensor(bool)": "bool",
}  # fmt: skip
_SUFFIXES: Final = {".pkl": "sklearn", ".joblib": "sklearn", ".ubj": "xgboost", ".xgb": "xgboost", ".lgb": "lightgbm"}
_NAME: Final = "trial"
"""The endpoint's name that the class sees."""
_EXCERPT_LINES: Final = 2
"""The lines shown before and after the line of a fault."""


@dataclass(frozen=True, slots=True)
class Trial:
    """What to run."""

    code: Path
    body: object
    engine: str = ""
    bundle: Path | None = None
    timeout: float = 60.0


@dataclass(frozen=True, slots=True)
class Report:
    """The result of a trial; ``stages`` are pairs of name and milliseconds."""

    answer: object
    engine: str
    stages: list[tuple[str, float]]
    statistics: Mapping[str, object]
    loading_s: float
    note: str = ""

    def content(self, *, is_plain: bool) -> bytes:
        """Return the answer as a gateway sends it, or indented JSON if ``is_plain`` is False."""
        body = getattr(self.answer, "body", self.answer)
        if isinstance(body, bytes):
            return body
        return to_json(body, orjson.OPT_APPEND_NEWLINE | (0 if is_plain else orjson.OPT_INDENT_2))


class HookFault(Exception):
    """The class failed or refused the input; ``excerpt`` holds the lines of its source around the place, if known."""

    def __init__(self, message: str, hint: str = "", excerpt: Sequence[str] = (), *, is_refusal: bool = False) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint
        self.excerpt = excerpt
        self.is_refusal = is_refusal


async def run(trial: Trial, send_request: SendRequest) -> Report:
    """Run a trial. Raises ``HookFault`` for faults of the class, ``ControlError`` if it cannot be run at all."""
    if not trial.code.exists():
        raise ControlError(f"{trial.code} does not exist", hint="give a .py file, or a folder with preprocess.py")
    _check_packages(trial)
    session = _onnx_session(trial)
    engine = trial.engine or _guess_engine(trial, has_session=session is not None)
    endpoint: dict[str, object] = {
        "engine_type": engine, "serving_url": _NAME, "version": "", "model_id": None,
        "preprocess_artifact": None, "input_size": [], "input_type": [], "input_name": [], "output_size": [],
        "output_type": [], "output_name": [], "auxiliary_cfg": None,
    }  # fmt: skip
    program = Program(_NAME, engine, trial.code.resolve(), _model_path(trial), endpoint)
    pool = HookPool(program, PoolLimits(1, 1, 0), send_request)
    began = time.monotonic()
    with ThreadPoolExecutor(1) as threads:
        try:
            await pool.start()
            loading = time.monotonic() - began
            if engine in ("custom", "custom_async") and "process" not in pool.loaded.stages:
                if trial.engine:
                    raise HookFault(f"engine {engine} needs a process method in its Preprocess class")
                return await _prepared_only(trial, pool, loading)
            handler = _handler(trial, pool, session, threads)
            trace = Trace("trial")
            try:
                trace.deadline = asyncio.get_running_loop().time() + trial.timeout
                answer = await handler.answer(trial.body, trace)
            except DeadlineExceeded as late:
                raise HookFault(
                    f"no answer within {trial.timeout:g} s", "a gateway would answer 504 and replace the process"
                ) from late
        except GatewayError as error:
            raise _fault(trial, error) from error
        finally:
            with contextlib.suppress(asyncio.CancelledError):
                await pool.close()
    return _report(trial, engine, pool.loaded.stages, trace, answer, loading)


async def _prepared_only(trial: Trial, pool: HookPool, loading: float) -> Report:
    deadline = asyncio.get_running_loop().time() + trial.timeout
    reply = await pool.run(["preprocess"], [(trial.body, None)], deadline, is_answer=False)
    outcome = reply.outcomes[0]
    if outcome.error is not None:
        raise outcome.error
    stages = [("preprocess", reply.stage_ns[0] / 1e6)]
    note = "the model was not run: this is what preprocess gives it (name the model with --bundle, or the --engine)"
    return Report(outcome.answer, "triton", stages, outcome.statistics, loading, note)


def _report(trial: Trial, engine: str, defined: Sequence[str], trace: Trace, answer: object, loading: float) -> Report:
    middle = "model" if engine == "triton" and "process" not in defined else "process"
    spent = {"preprocess": trace.prepare_ns, middle: trace.infer_ns, "postprocess": trace.finish_ns}
    by_us = {"model", *(["process"] if engine in ENGINES else []), *(["preprocess"] if trial.bundle else [])}
    stages = [(name, ns / 1e6) for name, ns in spent.items() if ns and (name in defined or name in by_us)]
    return Report(answer, engine, stages, trace.custom or {}, loading)


def _handler(trial: Trial, pool: HookPool, session: Any, threads: ThreadPoolExecutor) -> HookHandler:
    call, processor = None, None
    if session is not None:
        inputs = tuple(TensorInfo(i.name, _TYPES.get(i.type, "float32"), (-1,)) for i in session.get_inputs())
        call = TritonCall(
            cast(Backend, _OnnxBackend(session)), "model", inputs, tuple(o.name for o in session.get_outputs())
        )
        if trial.bundle is not None and (trial.bundle / "tokenizer.json").is_file():
            try:
                processor = TextProcessor.from_folder(
                    trial.bundle,
                    input_names=[t.name for t in inputs],
                    input_dtypes={t.name: t.dtype for t in inputs},
                    output_names=list(call.outputs),
                )
            except PreprocessingError as error:
                if "preprocess" not in pool.loaded.stages:
                    raise HookFault(error.message, error.hint or "") from error
    return HookHandler(ProcessExecutor(pool), call=call, default=processor, threads=threads, max_rows=1)


class _OnnxBackend:
    """Runs one model in ONNX Runtime instead of Triton."""

    def __init__(self, session: Any) -> None:
        self._session = session

    async def infer(
        self, _model: str, inputs: Mapping[str, NDArray[Any]], outputs: Sequence[str], *, timeout: float, **_: Any
    ) -> dict[str, NDArray[Any]]:
        """Run the model."""
        try:
            async with asyncio.timeout(timeout):
                found = await asyncio.to_thread(self._session.run, list(outputs) or None, dict(inputs))
        except TimeoutError:
            raise
        except Exception as error:
            raise HookFault(f"the model refused what preprocess returned: {str(error).splitlines()[0]}") from error
        names = list(outputs) or [o.name for o in self._session.get_outputs()]
        return dict(zip(names, (np.asarray(f) for f in found), strict=True))


def _onnx_session(trial: Trial) -> Any:
    bundle = trial.bundle
    if bundle is None or trial.engine not in ("", "triton"):
        return None
    file = bundle if bundle.suffix == ".onnx" else bundle / "model.onnx"
    if not file.is_file():
        if trial.engine == "triton":
            raise ControlError(f"{bundle} has no model.onnx", hint="only ONNX models can be run here without Triton")
        return None
    try:
        runtime = importlib.import_module("onnxruntime")
    except ImportError as error:
        raise ControlError("running the model here needs onnxruntime", hint='run `pip install ".[triton]"`') from error
    try:
        return runtime.InferenceSession(str(file), providers=["CPUExecutionProvider"])
    except Exception as error:  # its errors have no common base but this
        reason = str(error).splitlines()[0]
        raise ControlError(
            f"{file} cannot be loaded by ONNX Runtime: {reason}", hint="give a model that was exported to ONNX"
        ) from error


def _model_path(trial: Trial) -> Path | None:
    bundle = trial.bundle
    if bundle is None:
        return None
    if not bundle.exists():
        raise ControlError(f"{bundle} does not exist", hint="give the model's file or folder")
    return bundle.resolve()


def _guess_engine(trial: Trial, *, has_session: bool) -> str:
    if has_session:
        return "triton"
    bundle = trial.bundle
    files = [] if bundle is None else [bundle] if bundle.is_file() else sorted(bundle.iterdir())
    source = "".join(
        p.read_text("utf-8", "replace")
        for p in ([trial.code] if trial.code.is_file() else trial.code.glob("*.py"))
    )  # fmt: skip
    if re.search(r"^\s+(async )?def process(_batch)?\(", source, re.M):
        return "custom_async" if "async def" in source else "custom"
    for file in files:
        if file.suffix in _SUFFIXES:
            return _SUFFIXES[file.suffix]
    found = next((engine for engine in ENGINES if engine in source), "")
    return found if files and found else "custom"


def _check_packages(trial: Trial) -> None:
    file = packages.requirements_of(trial.code, trial.bundle)
    lacking = packages.missing(file) if file is not None else []
    if lacking:
        raise ControlError(
            f"{file} asks for packages that are not installed here: {', '.join(lacking)}",
            hint=f"run `pip install -r {file}`",
        )


def _fault(trial: Trial, error: GatewayError) -> HookFault:
    found = re.search(r" at ([^\s:]+\.py):(\d+)$", error.message)
    excerpt: list[str] = []
    if found is not None:
        excerpt = _excerpt(trial.code, found[1], int(found[2]))
    return HookFault(error.message, error.hint, excerpt, is_refusal=error.kind in OF_CALLERS)


@functools.lru_cache(1)
def _excerpt(code: Path, name: str, line: int) -> list[str]:
    file = code / name if code.is_dir() else code
    try:
        lines = file.read_text("utf-8", "replace").splitlines()
    except OSError:
        return []
    first = max(1, line - _EXCERPT_LINES)
    shown = lines[first - 1 : line + _EXCERPT_LINES]
    return [f"{'>' if n == line else ' '} {n:4} | {text}" for n, text in enumerate(shown, start=first)]

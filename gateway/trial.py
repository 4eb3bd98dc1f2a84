"""Runs a ``Preprocess`` class on one body on this machine, as a gateway would, and reports what each stage did.

Public: ``deploy`` may import it (``triton-gateway hook test`` does). The code runs in a hook process with a gateway's
limits. There is no Triton, and nobody answers ``send_request``.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import orjson

from gateway.errors import OF_CALLERS, ControlError, DeadlineExceeded, GatewayError
from gateway.handlers.hook import HookHandler
from gateway.hooks.json_form import to_json
from gateway.hooks.pool import HookPool, PoolLimits
from gateway.hooks.process import Program
from gateway.trace import Trace

_SUFFIXES: Final = {".pkl": "sklearn", ".joblib": "sklearn", ".ubj": "xgboost", ".xgb": "xgboost", ".lgb": "lightgbm"}
_NAME: Final = "trial"
"""The endpoint's name that the class sees."""


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

    def content(self) -> bytes:
        """Return the answer: bytes as a gateway sends them, else indented JSON."""
        body = getattr(self.answer, "body", self.answer)
        if isinstance(body, bytes):
            return body
        return to_json(body, orjson.OPT_APPEND_NEWLINE | orjson.OPT_INDENT_2)


class HookFault(Exception):
    """The class failed or refused the input."""

    def __init__(self, message: str, hint: str = "", *, is_refusal: bool = False) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint
        self.is_refusal = is_refusal


async def run(trial: Trial) -> Report:
    """Run a trial. Raises ``HookFault`` for faults of the class, ``ControlError`` if it cannot be run at all."""
    if not trial.code.exists():
        raise ControlError(f"{trial.code} does not exist", hint="give a .py file, or a folder with preprocess.py")
    engine = trial.engine or _guess_engine(trial)
    endpoint: dict[str, object] = {
        "engine_type": engine, "serving_url": _NAME, "version": "", "model_id": None,
        "preprocess_artifact": None, "input_size": [], "input_type": [], "input_name": [], "output_size": [],
        "output_type": [], "output_name": [], "auxiliary_cfg": None,
    }  # fmt: skip
    bundle = None if trial.bundle is None else trial.bundle.resolve()
    pool = HookPool(Program(_NAME, engine, trial.code.resolve(), bundle, endpoint), PoolLimits(1, 1, 0), _no_answer)
    began = time.monotonic()
    with ThreadPoolExecutor(1) as threads:
        try:
            await pool.start()
            loading = time.monotonic() - began
            if engine in ("custom", "custom_async") and "process" not in pool.stages:
                raise HookFault(f"engine {engine} needs a process method in its Preprocess class")
            handler = HookHandler(pool, call=None, default=None, threads=threads)
            trace = Trace("trial")
            try:
                trace.deadline = asyncio.get_running_loop().time() + trial.timeout
                answer = await handler.answer(trial.body, trace)
            except DeadlineExceeded as late:
                raise HookFault(
                    f"no answer within {trial.timeout:g} s", "a gateway would answer 504 and replace the process"
                ) from late
        except GatewayError as error:
            raise HookFault(error.message, error.hint, is_refusal=error.kind in OF_CALLERS) from error
        finally:
            with contextlib.suppress(asyncio.CancelledError):
                await pool.close()
    spent = {"preprocess": trace.prepare_ns, "process": trace.infer_ns, "postprocess": trace.finish_ns}
    defined = {*pool.stages, "process"}  # that of the libraries' engines is ours
    stages = [(name, ns / 1e6) for name, ns in spent.items() if ns and name in defined]
    note = "the model was not run: this is what preprocess gives it" if engine == "triton" else ""
    return Report(answer, engine, stages, trace.custom or {}, loading, note)


async def _no_answer(_name: str, _version: str | None, _data: object) -> None:
    """Answer ``send_request``."""


def _guess_engine(trial: Trial) -> str:
    if trial.bundle is not None and trial.bundle.suffix in _SUFFIXES:
        return _SUFFIXES[trial.bundle.suffix]
    files = [trial.code] if trial.code.is_file() else trial.code.glob("*.py")
    source = "".join(path.read_text("utf-8", "replace") for path in files)
    if re.search(r"^\s+(async )?def process\(", source, re.M):
        return "custom_async" if "async def" in source else "custom"
    return "triton"

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

from gateway.control.hooks import HookBuilder, HookParts
from gateway.errors import ControlError, DeadlineExceeded, HookFailed
from gateway.hooks.json_form import to_json
from gateway.hooks.pool import PoolLimits
from gateway.spec import EndpointSpec
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


async def run(trial: Trial) -> Report:
    """Run a trial. Raises ``GatewayError``, for a refused body with one of the kinds in ``errors.OF_CALLERS``."""
    if not trial.code.exists():
        raise ControlError(f"{trial.code} does not exist", hint="give a .py file, or a folder with preprocess.py")
    engine = trial.engine or _guess_engine(trial)
    bundle = None if trial.bundle is None else trial.bundle.resolve()
    parts = HookParts(EndpointSpec(_NAME, _NAME, "", engine), trial.code.resolve(), bundle, call=None, default=None)
    began, trace = time.monotonic(), Trace("trial")
    with ThreadPoolExecutor(1) as threads:
        handler, details = await HookBuilder(_no_answer, threads).in_processes(parts, PoolLimits(1, 1, 0))
        loading = time.monotonic() - began
        try:
            trace.deadline = asyncio.get_running_loop().time() + trial.timeout
            answer = await handler.answer(trial.body, trace)
        except DeadlineExceeded as late:
            hint = "a gateway would answer 504 and replace the process"
            raise HookFailed(f"no answer within {trial.timeout:g} s", hint=hint) from late
        finally:
            with contextlib.suppress(asyncio.CancelledError):
                await handler.close()
    spent = {"preprocess": trace.prepare_ns, "process": trace.infer_ns, "postprocess": trace.finish_ns}
    defined = {*details["stages"], "process"}  # that of the libraries' engines is ours
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

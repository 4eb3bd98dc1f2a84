"""Runs one stage of a ``Preprocess`` class for one or several requests, so that each fails on its own.

The gateway's threads and hook processes use it. They pass ``call``, which calls a hook directly, in a thread, or
awaits it.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, MutableMapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from preprocessing.errors import UserCodeError
from preprocessing.user_code import Stage, Statistics, UserCode

Call: TypeAlias = Callable[..., Awaitable[Any]]
"""``call(hook, is_async, data, state, statistics)`` calls a hook, or a batch hook with lists, and waits for it."""


@dataclass(slots=True, eq=False)
class Job:
    """One request in the stages. Once it has an ``error``, further stages skip it."""

    data: Any
    state: MutableMapping[str, Any] = field(default_factory=dict)
    statistics: Statistics | None = None
    error: UserCodeError | None = None


async def run_stage(code: UserCode, stage: Stage, jobs: Sequence[Job], call: Call) -> None:
    """Replace each job's ``data`` by the stage's result. A job that fails gets its ``error``; the others continue.

    Several jobs go through ``<stage>_batch`` together if the class has it. If the batch fails as a whole, each is tried
    alone, so that only the request at fault fails.
    """
    live = [job for job in jobs if job.error is None]
    batch = code.batch_hooks.get(stage)
    if batch is not None and len(live) > 1:
        try:
            results = await call(
                batch, code.is_batch_async(stage), [j.data for j in live], [j.state for j in live],
                [j.statistics for j in live],
            )  # fmt: skip
        except UserCodeError:
            pass
        else:
            for job, result in zip(live, results, strict=True):
                if isinstance(result, UserCodeError):
                    job.error = result
                else:
                    job.data = result
            return
    hook = getattr(code, stage)
    for job in live:
        try:
            job.data = await call(hook, code.is_async(stage), job.data, job.state, job.statistics)
        except UserCodeError as error:
            job.error = error

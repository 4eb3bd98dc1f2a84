"""Reports a gateway's figures to ClearML: scalars and console lines of the serving Task.

Runs as a separate process that reads ``/v1/status`` periodically and adds events to the Task, so requests never wait
for ClearML. The number of scalars and lines per report is limited, and a report that cannot be sent is dropped.
``compare`` is pure; ``follow`` is the loop. Called by ``commands/clearml_log.py``.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol

from deploy.tools.errors import GatewayError

MAX_SCALARS: Final = 500
"""Most scalars of one report."""
MAX_LINES: Final = 50
"""Most console lines of one report."""

Status = Mapping[str, Any]


class EventSink(Protocol):
    """The receiver of events. Raises ``GatewayError`` within bounded time if it cannot take them."""

    def report(self, events: Sequence[Mapping[str, Any]]) -> None:
        """Add events to the Task they name."""
        ...


@dataclass(frozen=True, slots=True)
class Round:
    """One report: scalars as (title, series, value), and console lines."""

    scalars: tuple[tuple[str, str, float], ...]
    lines: tuple[str, ...]


def compare(status: Status | None, before: Status | None) -> Round:
    """Return the report on ``status`` (None: the gateway does not answer), given the status ``before``."""
    if status is None:
        return Round((), ("the gateway does not answer",) if before is not None else ())
    scalars: list[tuple[str, str, float]] = []
    for row in status.get("last_minute", ()):
        if not row["endpoint"]:
            continue  # requests for paths that do not exist
        series = " ".join(part for part in (row["endpoint"], row["version"], row["route"]) if part)
        scalars += [("requests per second", series, row["rate"]), ("failed, share", series, row["failed"])]
        scalars += [
            (f"{name}, ms", series, row[name] * 1000) for name in ("p50", "p95", "p99") if row[name] is not None
        ]
        if row["rows_per_call"] is not None:
            scalars.append(("rows per call to Triton", series, row["rows_per_call"]))
    for variable in status.get("drift", ()):
        if variable["days"] is not None:
            series = " ".join((variable["endpoint"], variable["version"], variable["variable"]))
            scalars.append(("drift, evidence in days", series, variable["days"]))
    left_out = len(scalars) - MAX_SCALARS
    lines = _changes(_facts(status), _facts(before) if before is not None else {})
    if left_out > 0:
        lines.append(f"{left_out} scalars are left out: a report has {MAX_SCALARS} at most")
    if len(lines) > MAX_LINES:
        lines = [*lines[: MAX_LINES - 1], f"and {len(lines) - MAX_LINES + 1} more lines"]
    return Round(tuple(scalars[:MAX_SCALARS]), tuple(lines))


def _facts(status: Status) -> dict[str, str]:
    """Return the facts whose changes are reported as lines, by subject."""
    found = {"gateway": "ready" if status["ready"] else f"not ready: {'; '.join(status['not_ready_because'])}"}
    for endpoint in status["endpoints"]:
        model = " ".join(part for part in (endpoint["model_name"], endpoint["model_id"]) if part)
        found[f"endpoint {endpoint['url']}"] = f"is served{f' with {model}' if model else ''}"
    for pending in status["pending"]:
        found[f"new version of {pending['url']}"] = f"{pending['state']}: {pending['reason']}"
    for name, shares in status["canaries"].items():
        found[f"canary {name}"] = ", ".join(f"{share:.1%} {url}" for url, share in shares.items())
    for fault in status["faults"]:
        found[f"fault of {fault['subject']}"] = fault["message"]
    for address, is_up in status["triton"].items():
        found[f"Triton {address}"] = "answers" if is_up else "does not answer"
    for variable in status.get("drift", ()):
        if variable["state"] != "too few":
            name = f"{variable['variable']} of {variable['endpoint']} {variable['version']}"
            found[name] = "has drifted" if variable["state"] == "drift" else "is like its reference"
    for row in status.get("last_minute", ()):
        if row["endpoint"] and row["failed"] >= 0.01:
            found[f"failures of {row['endpoint']} {row['version']} {row['route']}"] = "above 1 %"
    return found


def _changes(now: Mapping[str, str], before: Mapping[str, str]) -> list[str]:
    changed = [f"{subject}: {fact}" for subject, fact in now.items() if before.get(subject) != fact]
    return changed + [f"{subject}: no longer" for subject in before if subject not in now]


def events(found: Round, task_id: str, *, iteration: int, now: float) -> list[dict[str, Any]]:
    """Return a report as ClearML's events; ``now`` is Unix time."""
    common = {"task": task_id, "timestamp": int(now * 1000), "worker": "triton-gateway"}
    return [
        *({**common, "type": "training_stats_scalar", "iter": iteration, "metric": title, "variant": series,
           "value": value} for title, series, value in found.scalars),
        *({**common, "type": "log", "level": "info", "msg": f"{line}\n"} for line in found.lines),
    ]  # fmt: skip


def follow(
    ask: Callable[[], Status | None],
    sink: EventSink,
    task_id: str,
    *,
    every: float,
    wait: Callable[[float], bool],
    say: Callable[[str], None],
    clock: Callable[[], float] = time.time,
) -> None:
    """Read the status and report every ``every`` seconds until ``wait`` (which waits) returns True.

    The iteration of a scalar is Unix time in seconds, so a curve continues after a restart or with another ``every``.
    """
    before: Status | None = None
    trouble = ""
    while True:
        now = clock()
        status = ask()
        found = compare(status, before)
        before = status
        made = events(found, task_id, iteration=int(now), now=now)
        try:
            if made:
                sink.report(made)
        except GatewayError as error:
            if str(error) != trouble:
                say(f"ClearML did not accept the report, which is dropped: {error}")
            trouble = str(error)
        else:
            if trouble:
                say("ClearML accepts reports again")
            trouble = ""
        if wait(max(0.0, every - (clock() - now))):
            return

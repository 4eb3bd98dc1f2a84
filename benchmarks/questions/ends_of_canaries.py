"""How and when does ``triton-gateway canary run`` end a canary that fails, is slow or answers differently?

Real control plane, real gateway with two workers, real command line. The versions are ``Preprocess`` code that fails,
is slow or answers differently at a given rate. ``prometheus-away`` reads a real Prometheus, which is stopped for half a
minute in the middle. Prints one JSON line per trial: how it ended, after how many canary requests and seconds, and how
many requests failed for the client (stable answers for a failing canary).
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.shared import processes
from benchmarks.shared.command import parser, tell
from benchmarks.shared.load import Steady
from benchmarks.shared.stack import Small
from deploy.laptop import prometheus

TAKES = "5 minutes"
SAVES = ""
_RATE = 60.0
_HOOK = """
import random, time
class Preprocess:
    def process(self, body, state, collect_custom_statistics_fn=None):
        time.sleep(random.lognormvariate(-4.8, 0.4) * {slowdown})
        if random.random() < {errors}:
            raise RuntimeError("seeded")
        return {{"verdict": "good" if random.random() < {good} else "bad"}}
"""


class _Seed(NamedTuple):
    """What a version does: its share of errors, its slowdown, and the share of one of its two answers."""

    errors: float = 0.003
    slowdown: float = 1.0
    good: float = 0.7


_TRIALS: dict[str, _Seed] = {
    "healthy": _Seed(), "errors-5": _Seed(errors=0.05), "errors-20": _Seed(errors=0.2),
    "errors-2": _Seed(errors=0.02), "slow-30": _Seed(slowdown=1.3), "slow-50": _Seed(slowdown=1.5),
    "labels": _Seed(good=0.3), "prometheus-away": _Seed(),
}  # fmt: skip
_AWAY_S = 30.0
_STEPS = "10,25,50,100"


class _Prometheus:
    """A real Prometheus that scrapes one gateway every two seconds, and goes away for a while."""

    def __init__(self, folder: Path, gateway: str) -> None:
        self._folder, self._port = folder, processes.free_port()
        self.url = f"http://{processes.LOOPBACK}:{self._port}"
        self._over = threading.Event()
        self._away = threading.Thread(target=self._goes_away)
        self._config = prometheus.prepare(folder, gateway=gateway.removeprefix("http://"), triton_metrics="")
        self._config.write_text(self._config.read_text().replace('"5s"', '"2s"'))

    def __enter__(self) -> _Prometheus:
        self._start()
        self._away.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._away.join()
        self._server.stop()

    def _start(self) -> None:
        binary = prometheus.program()
        if binary is None:
            raise processes.ServerFailed("prometheus is not on PATH: install Debian's package")
        argv = list(prometheus.command(binary, self._config, self._port))
        self._server = processes.Server(
            "prometheus", argv, env=os.environ, cores=range(os.cpu_count() or 1), log=self._folder / "log"
        )
        self._server.wait_for(f"{self.url}/-/ready")

    def _goes_away(self) -> None:
        """Stop after 15 seconds, and come back with the same data half a minute later."""
        time.sleep(15)
        self._server.stop()
        time.sleep(_AWAY_S)
        self._start()
        self._over.wait()  # a server ends with the thread that started it


def trial(stack: Small, folder: Path, name: str) -> dict[str, Any]:
    """Deploy a stable and a faulty version, roll the second one out, and return how it went."""
    for version, seed in (("1", _TRIALS["healthy"]), ("2", _TRIALS[name])):
        code = folder / f"{name}_{version}.py"
        code.write_text(_HOOK.format(**seed._asdict()))
        stack.run("model", "add", "--engine", "custom", "--endpoint", name, "--version", version,
                  "--preprocess", str(code))  # fmt: skip
    stack.run("metrics", "add", "--endpoint", f"{name}/*", "--log-freq", "1.0", "--variable-enum", "verdict=good,bad")
    urls = {f"{name}/1", f"{name}/2"}
    stack.until(lambda s: urls <= {e["url"] for e in s["endpoints"]}, f"{name} being served")
    canary = [sys.executable, "-m", "deploy.admin.cli", "canary"]
    subprocess.run([*canary, "set", "--endpoint", name, "1=1"], env=stack.env, check=True, stdout=sys.stderr)
    stack.until(lambda s: name in s["canaries"], f"{name} being routed")
    with contextlib.ExitStack() as open_:
        source = ["--gateway", stack.url]
        if name == "prometheus-away":
            source = ["--prometheus", open_.enter_context(_Prometheus(folder / "prometheus", stack.url)).url]
        began = time.monotonic()
        load = open_.enter_context(Steady(f"{stack.url}/serve/{name}", b"{}", rate=_RATE).running())
        done = subprocess.run(
            [*canary, "run", "--endpoint", name, "--to", "2", "--steps", _STEPS, "--min-requests", "150",
             "--step-time", "10s", "--interval", "2s", *source, "--json", "--label-shift", "10",
             "--label-variable", "verdict"],
            env=stack.env, stdout=subprocess.PIPE, text=True, check=False, timeout=560,
        )  # fmt: skip
        seconds = time.monotonic() - began
    decisions = [json.loads(line) for line in done.stdout.splitlines()]
    last = decisions[-1]
    return {
        "trial": name, "code": done.returncode, "ended": last["what"], "seconds": round(seconds, 1),
        "canary_requests": last["evidence"]["canary"][0], "canary_failures": last["evidence"]["canary"][1],
        "evidence": last["evidence"]["evidence"], "labels": last["evidence"]["label_shares"],
        "weights": [d["weight"] for d in decisions], "decisions": [d["what"] for d in decisions],
        "client": load.summary(),
    }  # fmt: skip


def main(argv: Sequence[str] | None = None) -> int:
    """Run the named trials, or all; the exit code is 0 if each ended as it should."""
    arguments = parser(__name__, __doc__)
    arguments.add_argument("trials", nargs="*", metavar="TRIAL", help=f"any of {', '.join(_TRIALS)}  [all]")
    wanted = arguments.parse_args(argv).trials or list(_TRIALS)
    if unknown := set(wanted) - set(_TRIALS):
        arguments.error(f"no such trial: {', '.join(sorted(unknown))}")
    results = []
    with tempfile.TemporaryDirectory(prefix="rollouts-") as temporary:
        folder = Path(temporary)
        stack = Small(folder, tritons=0, workers=2)
        try:
            for name in wanted:
                results.append(trial(stack, folder, name))
                tell(results[-1])
        finally:
            stack.stop()
    expected = {name: "promote" if name in ("healthy", "prometheus-away") else "roll back" for name in wanted}
    return 0 if expected == {r["trial"]: r["ended"] for r in results} else 1

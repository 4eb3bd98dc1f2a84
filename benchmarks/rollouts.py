"""``python -m benchmarks.rollouts``: seeded canaries through ``triton-gateway canary run`` on the real stack.

Real control plane, real gateway with two workers, real command line; the versions are ``Preprocess`` code that fails,
dawdles or answers otherwise as often as it is told. Prints one JSON line per trial: how it ended, after how many canary
requests and seconds, and how many requests failed at the client (a failing canary is answered for by stable).
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.small import Small, Steady

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
    """What a version does: the share of errors, how much slower it is, the share of one of its two answers."""

    errors: float = 0.003
    slowdown: float = 1.0
    good: float = 0.7


_TRIALS: dict[str, _Seed] = {
    "healthy": _Seed(), "errors-5": _Seed(errors=0.05), "errors-20": _Seed(errors=0.2),
    "slow-50": _Seed(slowdown=1.5), "labels": _Seed(good=0.3),
}  # fmt: skip
_STEPS = "10,25,50,100"


def trial(stack: Small, folder: Path, name: str) -> dict[str, Any]:
    """Deploy a stable and a seeded version, roll the second one out, return how it went."""
    for version, seed in (("1", _TRIALS["healthy"]), ("2", _TRIALS[name])):
        code = folder / f"{name}_{version}.py"
        code.write_text(_HOOK.format(**seed._asdict()))
        stack.run("model", "add", "--engine", "custom", "--endpoint", name, "--version", version,
                  "--preprocess", str(code))  # fmt: skip
    stack.run("metrics", "add", "--endpoint", f"{name}/*", "--log-freq", "1.0", "--variable-enum", "verdict=good,bad")
    urls = {f"{name}/1", f"{name}/2"}
    stack.until(lambda s: urls <= {e["url"] for e in s["endpoints"]}, f"{name} being served")
    canary = [sys.executable, "-m", "deploy.cli", "canary"]
    subprocess.run([*canary, "set", "--endpoint", name, "1=1"], env=stack.env, check=True, stdout=sys.stderr)
    stack.until(lambda s: name in s["canaries"], f"{name} being routed")
    began = time.monotonic()
    with Steady(f"{stack.url}/serve/{name}", b"{}", rate=_RATE).running() as load:
        done = subprocess.run(
            [*canary, "run", "--endpoint", name, "--to", "2", "--steps", _STEPS, "--min-requests", "150",
             "--step-time", "10s", "--interval", "2s", "--gateway", stack.url, "--json", "--label-shift", "10",
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
        "weights": [d["weight"] for d in decisions],
        "client": load.summary(),
    }  # fmt: skip


def main() -> int:
    """Run every trial; the exit code is 0 when each ended as it should."""
    wanted = sys.argv[1:] or list(_TRIALS)
    with tempfile.TemporaryDirectory(prefix="rollouts-") as temporary:
        folder = Path(temporary)
        stack = Small(folder, tritons=0, workers=2)
        try:
            results = [trial(stack, folder, name) for name in wanted]
        finally:
            stack.stop()
    for result in results:
        sys.stdout.write(json.dumps(result) + "\n")
    expected = {name: "promote" if name == "healthy" else "roll back" for name in wanted}
    return 0 if expected == {r["trial"]: r["ended"] for r in results} else 1


if __name__ == "__main__":
    sys.exit(main())

"""Do requests succeed, and does each answer follow the latest configuration, while things change and break?

Two gateways of two workers, two Tritons with model sync behind one address, the embedded control plane, the stock CLI.
Every part polls the registry every five seconds, the default. The load never retries. One JSON line per trial: ``live``
(how long after a command every worker follows it), ``split`` (shares, stickiness and ramp of a canary over HTTP),
``shadow`` (what mirroring costs the callers), ``outage`` (the registry goes away at several moments), ``replicas`` (one
Triton gets a new model half a minute after the other). The exit code is 0 if nothing failed and every change was live
within ten seconds.
"""

from __future__ import annotations

import http.client
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

from benchmarks.shared import tiny
from benchmarks.shared.command import parser, tell
from benchmarks.shared.load import Steady
from benchmarks.shared.processes import ServerFailed, ask, ask_json, until
from benchmarks.shared.stack import Small

TAKES = "8 minutes"
SAVES = ""
TRIALS: Final = ("live", "split", "shadow", "outage", "replicas")
_LOOKS = 24
"""New connections after which both workers of a gateway have answered (one in 2²⁴ misses one)."""


class Trials:
    """The stack, with two registered models and two registered pieces of code."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.stack = Small(folder / "stack", tritons=2, gateways=2, workers=2, poll="5s")
        for number, name in enumerate(("a", "b"), 1):
            (folder / name).mkdir()
            self.stack.upload(tiny.multiplying(folder / name / f"{name}.onnx", float(number)), f"model {name}")
            tiny.code(folder / name / "code.py", name)

    def add(self, endpoint: str, which: str, code: str, version: str = "") -> None:
        """Run the stock CLI's ``model add``; returns when the registry has the change."""
        self.stack.add(endpoint, f"model {which}", self.folder / code / "code.py", version)

    def canary(self, *arguments: str) -> None:
        """Run ``triton-gateway canary``."""
        subprocess.run([sys.executable, "-m", "deploy.admin.cli", "canary", *arguments], env=self.stack.env, check=True,
                       stdout=sys.stderr)  # fmt: skip

    def everywhere(self, holds: Callable[[str], bool], within: float = 60.0) -> float:
        """Wait until every worker of both gateways fulfils ``holds``; return the seconds it took."""
        return until(
            lambda: all(holds(url) for url in self.stack.urls for _ in range(_LOOKS)), "live everywhere",
            within=within, pause=0.05,
        )  # fmt: skip

    def answers(self, endpoint: str, which: str, code: str) -> Callable[[str], bool]:
        """Return True if a new connection to a gateway is answered by this model and this code."""
        wanted = tiny.answer(1.0 if which == "a" else 2.0, code)

        def holds(url: str) -> bool:
            try:
                return bool(json.loads(ask(f"{url}/serve/{endpoint}", tiny.BODY)) == wanted)
            except OSError:
                return False

        return holds

    def live(self) -> dict[str, Any]:
        """Change the model, the code, both, and the weights; measure until every worker follows."""
        self.add("live", "a", "a")
        first = self.everywhere(self.answers("live", "a", "a"))
        took = {"new": [first], "model": [], "code": [], "both": [], "weights": []}
        with Steady(f"{self.stack.url}/serve/live", tiny.BODY, rate=50).running() as load:
            for kind, which, code in (("model", "b", "a"), ("code", "b", "b"), ("both", "a", "a"), ("model", "b", "a"),
                                      ("code", "b", "b"), ("both", "a", "a")):  # fmt: skip
                self.add("live", which, code)
                took[kind].append(self.everywhere(self.answers("live", which, code)))
            self._split()
            for weights, which in (("1=1", "a"), ("2=1", "b"), ("1=1", "a")):
                self.canary("set", "--endpoint", "split", weights)
                took["weights"].append(self.everywhere(self.answers("split", which, "a")))
        seconds = {kind: [round(value, 1) for value in values] for kind, values in took.items()}
        return {"trial": "live", "seconds": seconds, "slowest": max(max(v) for v in seconds.values()),
                "client": load.summary()}  # fmt: skip

    def _split(self) -> None:
        for version, which in (("1", "a"), ("2", "b")):
            self.add("split", which, "a", version)
        self.everywhere(self.answers("split/1", "a", "a"))
        self.everywhere(self.answers("split/2", "b", "a"))

    def split(self) -> dict[str, Any]:
        """Send ten thousand requests without a key at 10 %, and a thousand keys ten times each on a ramp."""
        self._split()
        host = urlsplit(self.stack.url)
        connection = http.client.HTTPConnection(str(host.hostname), host.port, timeout=30)

        def served(key: str = "") -> str:
            headers = {"content-type": "application/json", **({"x-routing-key": key} if key else {})}
            connection.request("POST", "/serve/split", tiny.BODY, headers)
            reply = connection.getresponse()
            reply.read()
            if reply.status != 200:
                raise ServerFailed(f"a request failed with {reply.status}")
            return str(reply.headers["x-served-by"])

        def routed(share: float) -> Callable[[str], bool]:
            def holds(url: str) -> bool:
                shares = ask_json(f"{url}/v1/status")["canaries"].get("split", {})
                return abs(shares.get("split/2", 0.0) - share) < 1e-6

            return holds

        self.canary("set", "--endpoint", "split", "2=10", "1=90")
        self.everywhere(routed(0.1))
        share = sum(served() == "split/2" for _ in range(10_000)) / 10_000
        sides: list[set[str]] = []
        wavering = 0
        for percent in (1, 5, 25, 50):
            self.canary("set", "--endpoint", "split", f"2={percent}", f"1={100 - percent}")
            self.everywhere(routed(percent / 100))
            seen = {f"user-{n}": {served(f"user-{n}") for _ in range(10 if percent == 25 else 2)} for n in range(1000)}
            wavering += sum(len(found) > 1 for found in seen.values())
            sides.append({key for key, found in seen.items() if found == {"split/2"}})
        lost = sum(len(before - after) for before, after in pairwise(sides))
        return {"trial": "split", "wanted": 0.1, "share": share, "keys_on_two_sides": wavering,
                "keys_lost_on_the_ramp": lost, "keys_on_canary": [len(found) for found in sides]}  # fmt: skip

    def outage(self) -> dict[str, Any]:
        """Stop the registry while nothing, a swap or a restart is going on."""
        self.add("live", "a", "a")
        self.everywhere(self.answers("live", "a", "a"))
        with Steady(f"{self.stack.urls[0]}/serve/live", tiny.BODY, rate=100).running() as load:
            time.sleep(2)
            self.stack.stop_registry()
            time.sleep(8)
            self.stack.start_registry()
            self.add("live", "b", "b")
            self.stack.stop_registry()  # in the middle of the swap: the change is stored, but perhaps not its files
            time.sleep(8)
            self.stack.start_registry()
            back = self.everywhere(self.answers("live", "b", "b"))
            self.stack.stop_registry()
            self.stack.restart_gateway(1)  # the other gateway gets the load
            alone = self.answers("live", "b", "b")(self.stack.urls[1])
            self.stack.start_registry()
            self.add("live", "a", "a")
            after = self.everywhere(self.answers("live", "a", "a"))
        return {"trial": "outage", "swap_after_outage_s": round(back, 1), "started_without_registry": alone,
                "next_change_s": round(after, 1), "client": load.summary()}  # fmt: skip

    def replicas(self) -> dict[str, Any]:
        """Stop one model sync, change the model, and start that sync again half a minute later."""
        self.add("live", "a", "a")
        self.everywhere(self.answers("live", "a", "a"))
        with Steady(f"{self.stack.url}/serve/live", tiny.BODY, rate=100).running() as load:
            os.kill(self.stack.syncs[1].pid, signal.SIGSTOP)
            try:
                self.add("live", "b", "b")
                time.sleep(30)
                early = any(self.answers("live", "b", "b")(url) for url in self.stack.urls)
            finally:
                os.kill(self.stack.syncs[1].pid, signal.SIGCONT)
            took = self.everywhere(self.answers("live", "b", "b"))
        return {"trial": "replicas", "swapped_before_all_had_it": early, "swap_s": round(took, 1),
                "client": load.summary()}  # fmt: skip

    def shadow(self) -> dict[str, Any]:
        """Send the same load without a shadow, with 20 % and with everything mirrored to an equal version."""
        seen: dict[str, Any] = {}
        for version, which in (("1", "a"), ("2", "a")):
            self.add("mirrored", which, "a", version)
        for version in "12":
            self.everywhere(self.answers(f"mirrored/{version}", "a", "a"))
        url = self.stack.url
        for percent in (0, 20, 100):
            change = ["--off"] if not percent else ["--to", "2", "--percent", str(percent)]
            self.canary("shadow", "--endpoint", "mirrored", *change)
            self.everywhere(lambda url, p=percent: _mirrors(url) == p)  # type: ignore[misc]
            before = _mirrored(url)
            with Steady(f"{url}/serve/mirrored/1", tiny.BODY, rate=100).running() as load:
                time.sleep(12)
            time.sleep(3)
            after = _mirrored(url)
            seen[f"{percent} %"] = {**load.summary(), "shadow": {k: after.get(k, 0) - before.get(k, 0) for k in after}}
        self.canary("shadow", "--endpoint", "mirrored", "--off")
        return {"trial": "shadow", **seen, "client": {"failed": sum(one["failed"] for one in seen.values())}}


def _mirrors(url: str) -> float:
    shadows = ask_json(f"{url}/v1/status")["shadows"]
    return float(shadows["mirrored"]["percent"]) if "mirrored" in shadows else 0


def _mirrored(url: str) -> dict[str, int]:
    lines = re.findall(
        r'gateway_shadow_requests_total{[^}]*outcome="(\w+)"[^}]*} (\S+)', ask(f"{url}/metrics").decode()
    )
    return {outcome: int(float(count)) for outcome, count in lines}


def _holds(result: dict[str, Any]) -> bool:
    if result.get("client", {}).get("failed"):
        return False
    if result["trial"] == "live":
        return float(result["slowest"]) <= 10
    if result["trial"] == "split":
        off = abs(result["share"] - result["wanted"])
        return off <= 0.01 and not result["keys_on_two_sides"] and not result["keys_lost_on_the_ramp"]
    return not result.get("swapped_before_all_had_it") and result.get("started_without_registry", True)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the named trials, or all."""
    arguments = parser(__name__, __doc__)
    arguments.add_argument("trials", nargs="*", metavar="TRIAL", help=f"any of {', '.join(TRIALS)}  [all]")
    wanted = arguments.parse_args(argv).trials or TRIALS
    if unknown := set(wanted) - set(TRIALS):
        arguments.error(f"no such trial: {', '.join(sorted(unknown))}")
    is_good = True
    with tempfile.TemporaryDirectory(prefix="operations-") as temporary:
        trials = Trials(Path(temporary))
        try:
            for name in wanted:
                result = getattr(trials, name)()
                tell(result)
                is_good &= _holds(result)
        finally:
            trials.stack.stop()
    return 0 if is_good else 1

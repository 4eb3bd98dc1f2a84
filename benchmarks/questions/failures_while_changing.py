"""Do requests fail, and how long does a swap take, while an endpoint's model or code is swapped repeatedly?

Real control plane, real Triton (one, then two behind one address) with model sync, real gateway. Every swap gives one
endpoint another model, other ``Preprocess`` code, or both, and waits until the gateway answers with it. The load never
retries. Prints one JSON line per number of Tritons; the exit code is 0 if nothing failed.
"""

from __future__ import annotations

import json
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.shared.command import parser, tell
from benchmarks.shared.load import Steady, closed_loop, render
from deploy.tools import sections
from gateway import hocon
from gateway.registry import ClearMLRegistry
from tests import tiny
from tests.processes import ask
from tests.stack import Small
from tests.stock import Client
from tests.waiting import until

TAKES = "4 minutes"
SAVES = ""
_ENDPOINT = "swapped"


def _prepare(client: Client, folder: Path) -> None:
    """Register two models and two pieces of code through the stock CLI, as the endpoints ``a`` and ``b``."""
    for number, name in enumerate(("a", "b"), 1):
        model = client.upload(f"model {name}", tiny.multiplying(folder / name / f"{name}.onnx", float(number)))
        client.stock("model", "add", "--engine", "triton", "--endpoint", name, "--model-id", model, "--preprocess",
                     str(tiny.code(folder / name / "code.py", name)), *tiny.TENSORS)  # fmt: skip


def trial(folder: Path, *, tritons: int, swaps: int) -> dict[str, Any]:
    """Swap ``swaps`` times under half of the load that the endpoint can bear; return failures and swap times."""
    with Small(folder / f"stack-{tritons}", tritons=tritons) as stack, stack.client.here():
        _prepare(stack.client, folder / f"parts-{tritons}")
        store = ClearMLRegistry(stack.client.task)
        entries = hocon.parse(store.task().sections.get("endpoints", ""))
        parts = {name: (entries[name]["model_id"], entries[name]["preprocess_artifact"]) for name in ("a", "b")}
        templates = {name: dict(entries[name]) for name in ("a", "b")}
        store.write({"endpoints": "{}"})
        url = f"{stack.url}/serve/{_ENDPOINT}"

        def swap(model: str, code: str) -> float:
            entry = {**templates["a"], "serving_url": _ENDPOINT, "version": "",
                     "model_id": parts[model][0], "preprocess_artifact": parts[code][1]}  # fmt: skip
            began = time.monotonic()
            store.write({"endpoints": sections.render({_ENDPOINT: entry})})
            wanted = tiny.answer(1.0 if model == "a" else 2.0, code)

            def is_live() -> bool:
                try:
                    return bool(json.loads(ask(url, tiny.BODY)) == wanted)
                except OSError:
                    return False

            until(is_live, what=f"the swap to {model}, {code}")
            return time.monotonic() - began

        swap("a", "a")
        time.sleep(1.0)
        capacity = closed_loop(url, render(url, [tiny.BODY]), 4.0, connections=8)
        rate = capacity.requests / 4.0 / 2
        order = [("b", "a"), ("b", "b"), ("a", "a")]  # the model, the code, both
        took: list[float] = []
        with Steady(url, tiny.BODY, rate=rate).running() as steady:
            took.extend(swap(*order[number % 3]) for number in range(swaps))
        seen = steady.summary()
    return {"tritons": tritons, "swaps": swaps, "rate": round(rate), "median_s": round(median(took), 2),
            "slowest_s": round(max(took), 2), **seen}  # fmt: skip


def main(argv: Sequence[str] | None = None) -> int:
    """Run the trials."""
    arguments = parser(__name__, __doc__)
    arguments.add_argument("--swaps", type=int, default=100)
    arguments.add_argument("--tritons", type=int, action="append", help="only this number; may be repeated [1, 2]")
    options = arguments.parse_args(argv)
    failed = 0
    with tempfile.TemporaryDirectory(prefix="swaps-") as temporary:
        for tritons in options.tritons or [1, 2]:
            result = trial(Path(temporary), tritons=tritons, swaps=options.swaps)
            tell(result)
            failed += result["failed"]
    return 1 if failed else 0

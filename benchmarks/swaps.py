"""``python -m benchmarks.swaps``: consecutive swaps under steady load, counted in failed requests.

Real control plane, real Triton (one, then two behind one address) with model sync, real gateway. Every swap changes
what one endpoint serves: another model, other ``Preprocess`` code, or both; it is waited for until the gateway answers
with it. The load never retries. Prints one JSON line per number of Tritons; the exit code is 0 when nothing failed.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from benchmarks.load import Load, render
from benchmarks.servers import ServerFailed, ask
from benchmarks.small import Small, Steady
from deploy.registry import ClearMLStore, section_text
from deploy.tools import sections

_ENDPOINT = "swapped"
_BODY = b'{"x": [[1.0, 2.0]]}'
HOOK = """
import numpy as np
class Preprocess:
    def preprocess(self, body, state, collect_custom_statistics_fn=None):
        return np.array(body["x"], dtype="float32")
    def postprocess(self, data, state, collect_custom_statistics_fn=None):
        return {{"y": data.tolist(), "code": "{name}"}}
"""


def model(path: Path, factor: float) -> Path:
    """Save a model that multiplies: its answer tells which one it is."""
    shape = ["batch", 2]
    graph = helper.make_graph(
        [helper.make_node("Mul", ["x", "factor"], ["y"])], "factor",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, shape)],
        [numpy_helper.from_array(np.array([factor], dtype=np.float32), "factor")],
    )  # fmt: skip
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])
    made.ir_version = 8
    onnx.save(made, path)
    return path


def _prepare(stack: Small, folder: Path) -> None:
    """Register two models and two pieces of code through the stock CLI, as the endpoints ``a`` and ``b``."""
    tensors = ["--input-name", "x", "--input-type", "float32", "--input-size", "[-1, 2]",
               "--output-name", "y", "--output-type", "float32", "--output-size", "[-1, 2]"]  # fmt: skip
    for number, name in enumerate(("a", "b"), 1):
        (folder / name).mkdir()
        path = model(folder / name / f"{name}.onnx", float(number))
        stack.run("model", "upload", "--name", f"model {name}", "--project", "swaps", "--path", str(path),
                  "--publish", "--framework", "onnx")  # fmt: skip
        code = folder / name / "code.py"
        code.write_text(HOOK.format(name=name))
        stack.run("model", "add", "--engine", "triton", "--endpoint", name, "--name", f"model {name}",
                  "--project", "swaps", "--preprocess", str(code), *tensors)  # fmt: skip


def trial(folder: Path, *, tritons: int, swaps: int) -> dict[str, Any]:
    """Swap so often under load at half of what the endpoint can do; return what failed and how long swaps took."""
    stack = Small(folder / f"stack-{tritons}", tritons=tritons)
    try:
        (folder / f"parts-{tritons}").mkdir()
        _prepare(stack, folder / f"parts-{tritons}")
        os.environ.update(stack.env)
        from gateway.registry.clearml import ClearMLRegistry

        store = ClearMLStore(ClearMLRegistry(stack.task))
        entries = sections.parse(section_text(store.task(), "endpoints"))
        parts = {name: (entries[name]["model_id"], entries[name]["preprocess_artifact"]) for name in ("a", "b")}
        templates = {name: dict(entries[name]) for name in ("a", "b")}
        store.write({"endpoints": "{}"})
        url = f"{stack.url}/serve/{_ENDPOINT}"

        def swap(model: str, code: str) -> float:
            entry = {**templates["a"], "serving_url": _ENDPOINT, "version": "",
                     "model_id": parts[model][0], "preprocess_artifact": parts[code][1]}  # fmt: skip
            began = time.monotonic()
            store.write({"endpoints": sections.render({_ENDPOINT: entry})})
            wanted = {"y": [[1.0, 2.0] if model == "a" else [2.0, 4.0]], "code": code}
            while time.monotonic() - began < 120:
                try:
                    if json.loads(ask(url, _BODY)) == wanted:
                        return time.monotonic() - began
                except OSError:
                    pass
                time.sleep(0.05)
            raise ServerFailed(f"the swap to {model}, {code} was not live within 120 s")

        swap("a", "a")
        time.sleep(1.0)
        load = Load(url, render(url, [_BODY]), connections=8)
        capacity = load.closed_loop(4.0)
        load.close()
        rate = capacity.requests / 4.0 / 2
        order = [("b", "a"), ("b", "b"), ("a", "a")]  # the model, the code, both
        took: list[float] = []
        with Steady(url, _BODY, rate=rate).running() as steady:
            took.extend(swap(*order[number % 3]) for number in range(swaps))
        seen = steady.summary()
    finally:
        stack.stop()
    return {"tritons": tritons, "swaps": swaps, "rate": round(rate), "median_s": round(median(took), 2),
            "slowest_s": round(max(took), 2), **seen}  # fmt: skip


def main() -> int:
    """Run the trials."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.swaps", description=__doc__)
    parser.add_argument("--swaps", type=int, default=100)
    parser.add_argument("--tritons", type=int, action="append", help="only this many; may be repeated [1, 2]")
    options = parser.parse_args()
    failed = 0
    with tempfile.TemporaryDirectory(prefix="swaps-") as temporary:
        for tritons in options.tritons or [1, 2]:
            result = trial(Path(temporary), tritons=tritons, swaps=options.swaps)
            sys.stdout.write(json.dumps(result) + "\n")
            sys.stdout.flush()
            failed += result["failed"]
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())

"""How much memory and disk does one more endpoint take: in a gateway, in model sync, in Triton?

Real processes: a gateway with one worker, the embedded Triton with model sync, the embedded control plane. Versions of
all-MiniLM-L6-v2 (the demo's encoder) are added one after the other, each as a separate model with its own file. Memory
(RSS of each process and its children) and disk (the state folders) are read before the first, after the first and after
the last.
"""

from __future__ import annotations

import json
import shutil
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.shared import machine
from benchmarks.shared.command import narrator, parser
from benchmarks.shared.results import DOCS, facts_of, put, save, table
from deploy.laptop.demo.minilm import WEIGHTS, bundle
from tests import processes
from tests.stack import Small
from tests.waiting import until

TAKES = "two minutes"
SAVES = "results/endpoint.json, docs/kubernetes.md"
PAGE = DOCS / "kubernetes.md"
MB = 1e6
INPUTS = ("input_ids", "attention_mask", "token_type_ids")
TENSORS = (
    "--input-name", *INPUTS, "--input-type", *["int64"] * 3, "--input-size", *["[-1, -1]"] * 3,
    "--output-name", "sentence_embedding", "--output-type", "float32", "--output-size", "[-1, 384]",
)  # fmt: skip


def main(argv: Sequence[str] | None = None) -> int:
    """Measure and print."""
    size = parser(__name__, __doc__, saves=SAVES)
    size.add_argument("--endpoints", type=int, default=1, help="how many are added after the first")
    given = size.parse_args(argv)
    found = {"facts": facts_of(1), **_measure(given.endpoints)}
    sys.stdout.write(json.dumps(found) + "\n")
    if given.save:
        save("endpoint", found)
        put(PAGE, "endpoint", endpoint_table(found))
    return 0


def endpoint_table(found: dict[str, Any]) -> str:
    """Return the table of the guide."""
    rows = [["process", "without an endpoint, MB", "with the first, MB more", "each further one, MB more"]]
    names = {"gateway": "gateway (one worker)", "sync": "model sync", "triton": "Triton (ONNX Runtime, CPU)"}
    rows += [
        [name, *(f"{found['memory_mb'][key][part]:.0f}" for part in ("none", "first", "each"))]
        for key, name in names.items()
    ]
    rows += [
        [f"disk of {name}", *(f"{found['disk_mb'][key][part]:.0f}" for part in ("none", "first", "each"))]
        for key, name in (("gateway", "a gateway"), ("triton", "a Triton with its model sync"))
    ]
    return table(rows, align=["---", "---:", "---:", "---:"])


def _measure(more: int) -> dict[str, Any]:
    say = narrator()
    state = Path(tempfile.mkdtemp(prefix="size-"))
    made = bundle(state / "made")
    sizes = {
        "weights_mb": round((made / WEIGHTS).stat().st_size / MB, 1), "bundle_mb": round(_disk(made) / MB, 1),
    }  # fmt: skip
    with Small(state, tritons=1) as stack:
        parts = {
            "gateway": (stack.gateway.process.pid, state / "gateway"),
            "sync": (stack.syncs[0].pid, None),
            "triton": (stack.tritons[0].pid, state / "triton-0"),
        }
        seen = [_read(parts)]
        for number in range(1 + more):
            folder = state / f"minilm-{number}"
            shutil.copytree(made, folder)
            _alter(folder)
            model = stack.client.upload(folder.name, folder)
            add = ("model", "add", "--engine", "triton", "--endpoint", folder.name, "--model-id", model)
            stack.client.stock(*add, *TENSORS)
            _served(f"{stack.url}/serve/{folder.name}")
            say(f"{folder.name} is served")
            if number in (0, more):
                seen.append(_read(parts))
    shutil.rmtree(state, ignore_errors=True)
    none, first, last = seen
    return {
        "model": "all-MiniLM-L6-v2", **sizes, "endpoints": 1 + more,
        "memory_mb": {name: _steps([one[name][0] for one in (none, first, last)], more) for name in parts},
        "disk_mb": {n: _steps([one[n][1] for one in (none, first, last)], more) for n in ("gateway", "triton")},
    }  # fmt: skip


def _steps(read: Sequence[float], more: int) -> dict[str, float]:
    none, first, last = read
    parts = {"none": none, "first": first - none, "each": (last - first) / more}
    return {name: round(size / MB, 1) for name, size in parts.items()}


def _alter(folder: Path) -> None:
    """Turn a copy into a different model: equal bytes would be fetched and loaded once."""
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "name_here": folder.name}))


def _read(parts: dict[str, tuple[int, Path | None]]) -> dict[str, tuple[float, float]]:
    return {name: (_memory(pid), _disk(folder) if folder else 0.0) for name, (pid, folder) in parts.items()}


def _memory(pid: int) -> float:
    stats = machine.read_all()
    return float(sum(stats[each].rss_bytes for each in machine.tree([pid], stats)))


def _disk(folder: Path) -> float:
    """Return bytes on disk; a file that is linked twice counts once."""
    files = {(one.stat().st_ino): one.stat().st_size for one in folder.rglob("*") if one.is_file()}
    return float(sum(files.values()))


def _served(url: str) -> None:
    def is_served() -> bool:
        try:
            return bool(processes.ask(url, b'{"text": ["hello"]}', timeout=60))
        except OSError:
            return False

    until(is_served, pause=0.2, what=f"an answer of {url}")

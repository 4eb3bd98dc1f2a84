"""How many instructions does a request take in this checkout, and how many in another one?

A busy machine makes every measurement of time a guess; instructions are the same on every run. Both gateways answer the
same requests in one process, without sockets and without Triton, under valgrind's cachegrind, which counts
instructions and simulates the caches of a server's core (32 KiB and 1 MiB). Two runs of different length give the
numbers per request, without the start. Not counted: the kernel, and calls to Triton. ``--before`` is a folder with the
other commit (``git worktree add``).
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final

from benchmarks.peers.run import commit
from benchmarks.shared.command import ROOT, Say, narrator, parser
from benchmarks.shared.corpus import Corpus, vocabulary
from benchmarks.shared.results import DOCS, put, save, table
from benchmarks.shared.words import text_bundle

TAKES = "6 minutes"
SAVES = "results/instructions.json, docs/decisions/0025-one-request-path.md"
PAGE: Final = DOCS / "decisions" / "0025-one-request-path.md"
CONNECTIONS: Final = (1, 64)
_ANSWERS: Final = (3000, 8000)
"""Answers of the two runs."""
_PROGRAM: Final = ROOT / "benchmarks" / "shared" / "simulated_sockets.py"
_CACHES: Final = ("--I1=32768,8,64", "--D1=32768,8,64", "--LL=1048576,16,64")
_COUNTED: Final = {"instructions": r"I\s+refs", "first": r"D1\s+misses", "second": r"LL misses"}
"""What is counted, and its line in cachegrind's summary: instructions, data that is not in the first cache, and data
and code that is not in the second.
"""
_TEXTS: Final = 5000


def prepare(folder: Path) -> None:
    """Write the model's bundle and the requests."""
    bundle = text_bundle(folder / "bundle", words=vocabulary()[:8000])
    with zipfile.ZipFile(folder / "m.zip", "w") as packed:
        for file in bundle.iterdir():
            packed.write(file, file.name)
    head = b"POST /serve/e HTTP/1.1\r\nhost: a\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n"
    bodies = [json.dumps({"text": text}).encode() for text in Corpus().texts("short", _TEXTS)]
    (folder / "requests").write_bytes(b"\0".join(head % len(body) + body for body in bodies))


def counts(summary: str) -> dict[str, int]:
    """Return what cachegrind's summary says, by the names of ``_COUNTED``. Raises ``ValueError`` if it lacks one."""
    found = {}
    for name, line in _COUNTED.items():
        match = re.search(rf"{line}:\s+([\d,]+)", summary)
        if match is None:
            raise ValueError(f"cachegrind did not count: {summary[-500:]}")
        found[name] = int(match[1].replace(",", ""))
    return found


def _run(checkout: Path, folder: Path, connections: int, answers: int) -> dict[str, int]:
    done = subprocess.run(
        ["valgrind", "--tool=cachegrind", "--cache-sim=yes", *_CACHES, "--cachegrind-out-file=/dev/null",
         sys.executable, "-P", str(_PROGRAM), "--folder", str(folder), "--connections", str(connections),
         "--answers", str(answers)],
        env={**os.environ, "PYTHONPATH": str(checkout), "PYTHONHASHSEED": "0"}, cwd=checkout, capture_output=True,
        text=True, timeout=1200, check=False,
    )  # fmt: skip
    if done.returncode:
        raise ValueError(f"{checkout} did not answer: {(done.stdout + done.stderr)[-1500:]}")
    answered, calls = map(int, done.stdout.split()[-2:])
    return {"answers": answered, "calls": calls, **counts(done.stderr)}


def measure(checkout: Path, folder: Path, connections: int) -> dict[str, float]:
    """Return the counts per request, and the rows of a call."""
    with ThreadPoolExecutor(len(_ANSWERS)) as pool:
        short, long = pool.map(lambda answers: _run(checkout, folder, connections, answers), _ANSWERS)
    more = {name: long[name] - short[name] for name in long}
    per_request = {name: more[name] / more["answers"] for name in _COUNTED}
    return {**per_request, "rows": more["answers"] / max(more["calls"], 1)}


def run(before: Path, say: Say) -> list[dict[str, Any]]:
    """Measure both checkouts with every number of connections."""
    rows = []
    with tempfile.TemporaryDirectory() as name:
        prepare(Path(name))
        for connections in CONNECTIONS:
            now, other = (measure(checkout, Path(name), connections) for checkout in (ROOT, before))
            rows.append({"connections": connections, "now": now, "before": other})
            say(line(rows[-1]))
    return rows


def line(row: Mapping[str, Any]) -> str:
    """Return a row as one line of text."""
    now, before = row["now"], row["before"]
    parts = [f"{row['connections']} connections"]
    parts += [f"{name} {now[name]:,.0f} / {before[name]:,.0f} = {now[name] / before[name]:.3f}" for name in _COUNTED]
    return "  ".join([*parts, f"rows a call {now['rows']:.1f} / {before['rows']:.1f}"])


def shown(found: Mapping[str, Any]) -> str:
    """Return the table of decision 0025."""
    rows = [["connections", "instructions", "before", "ratio", "not in 32 KiB", "before", "not in 1 MiB", "before"]]
    for row in found["rows"]:
        now, before = row["now"], row["before"]
        ratio = now["instructions"] / before["instructions"]
        rows.append([
            str(row["connections"]), f"{now['instructions']:,.0f}", f"{before['instructions']:,.0f}", f"{ratio:.2f}",
            *(f"{one[name]:,.0f}" for name in ("first", "second") for one in (now, before)),
        ])  # fmt: skip
    facts = found["facts"]
    return f"{table(rows)}\n\n{facts['now']} beside {facts['before']}; per request, without kernel and Triton."


def main(argv: Sequence[str] | None = None) -> int:
    """Measure and print."""
    arguments = parser(__name__, __doc__, saves=SAVES)
    arguments.add_argument("--before", type=Path, required=True, help="folder with the other checkout")
    options = arguments.parse_args(argv)
    if shutil.which("valgrind") is None:
        arguments.error("valgrind is not on PATH (Debian: apt install valgrind)")
    before = options.before.resolve()
    try:
        rows = run(before, narrator())
    except ValueError as error:
        sys.stderr.write(f"error: {error}\n")
        return 1
    if options.save:
        found = {"facts": {"now": commit(), "before": commit(before)}, "rows": rows}
        save("instructions", found)
        put(PAGE, "instructions", shown(found))
    return 0

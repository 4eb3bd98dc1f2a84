"""How long does a new user wait from nothing to the first answer, and how much is downloaded, on each Python?

Two ways: `make up` in a fresh clone, and, without make and git, the wheel in a fresh virtual environment. Each step is
what a person would type, in an empty folder, without pip's cache. Then the printed request is sent, and everything is
stopped. ``.ci/pythons`` runs it for the wheel alone, with pinned versions and pip's cache, and fails if an answer is
wrong.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from benchmarks.shared.command import ROOT, Say, narrator, parser
from benchmarks.shared.results import DOCS, put, save, saved, table

TAKES = "two minutes for each Python and way"
SAVES = "results/first-answer.json, docs/first-answer.md"

PYTHONS = ("3.11", "3.12", "3.13")
WAYS = ("wheel", "clone")
NUMBERS = 384
"""Numbers in one of the demo's vectors."""
_UP_S = 300.0
_DOWNLOADED = re.compile(r"(?:Downloading|Using cached) \S+ \(([\d.]+) (kB|MB)\)")
_READY = re.compile(r"\] ready in ")
_ASKED = re.compile(r"curl -s (\S+)")

PEERS = (
    ("Text Embeddings Inference", "in a container (its quick tour)",
     "`docker run -p 8080:80 -v $PWD/data:/data …/text-embeddings-inference:cpu-1.9 --model-id $model`"),
    ("Text Embeddings Inference", "without containers (its page on CPUs): install Rust, then compile",
     "`cargo install --path router -F mkl`, `text-embeddings-router --model-id $model --port 8080`"),
    ("vLLM", "its quickstart: Linux, Python 3.10 to 3.13, an NVIDIA GPU (CPUs need another installation)",
     "`uv pip install vllm --torch-backend=auto`, `vllm serve $model`"),
)  # fmt: skip


class Wrong(Exception):
    """A step failed or an answer is wrong; the message says which."""


@dataclass(frozen=True, slots=True)
class Step:
    """What was typed, how long it took, and how much it downloaded."""

    python: str
    way: str
    typed: str
    seconds: float
    mb: float


def find(version: str) -> str:
    """Return the interpreter of a version, from PATH or pyenv; empty if there is none."""
    home = Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv") / "versions"
    for one in (f"python{version}", *map(str, sorted(home.glob(f"{version}.*/bin/python")))):
        with contextlib.suppress(OSError):
            asked = [one, "-c", "import ensurepip, sys; print('%d.%d' % sys.version_info[:2], sys.executable)"]
            found = subprocess.run(asked, capture_output=True, text=True, check=False).stdout.split()
            if found[:1] == [version]:
                return found[1]
    return ""


def downloaded(log: str) -> float:
    """Return the MB that pip said it downloaded."""
    return sum(float(size) / (1000 if unit == "kB" else 1) for size, unit in _DOWNLOADED.findall(log))


class Stranger:
    """A new user with one Python and one way, in an empty folder."""

    def __init__(self, python: str, version: str, way: str, folder: Path, env: Mapping[str, str], say: Say) -> None:
        self._python, self._version, self._way, self._folder = python, version, way, folder
        self._env, self._say = env, say
        self.steps: list[Step] = []

    def wheel(self, wheel: Path) -> None:
        """Install the wheel, start, send a request, stop. Raises ``Wrong``."""
        self._typed("python -m venv .venv", [self._python, "-m", "venv", ".venv"])
        pip = [".venv/bin/pip", "--disable-pip-version-check", "install", "--progress-bar", "off"]
        self._typed(f'pip install "{wheel.name}[up]"', [*pip, f"{wheel}[up]"])
        self._up("triton-gateway up --demo", [".venv/bin/triton-gateway", "up", "--demo", *_FREE], self._folder)

    def clone(self, source: Path) -> None:
        """Clone, `make up`, send a request, stop. Raises ``Wrong``."""
        self._typed("git clone", ["git", "clone", "-q", str(source), "gateway"])
        made = ["make", "up", f"PYTHON={self._python}", f"ARGS={' '.join(_FREE)}"]
        self._up("make up", made, self._folder / "gateway")

    def _typed(self, shown: str, argv: Sequence[str]) -> None:
        began = time.monotonic()
        done = subprocess.run(
            argv, cwd=self._folder, env=self._env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
            check=False, timeout=900,
        )  # fmt: skip
        if done.returncode != 0:
            raise Wrong(f"{shown}: {done.stdout[-600:]}")
        self._add(shown, time.monotonic() - began, downloaded(done.stdout))

    def _up(self, shown: str, argv: Sequence[str], folder: Path) -> None:
        began = time.monotonic()
        with subprocess.Popen(
            argv, cwd=folder, env=self._env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
            start_new_session=True,
        ) as running:  # fmt: skip
            try:
                address = _ready(running)
                took = time.monotonic() - began
                _check(address)
            finally:
                for _ in range(2):  # the second start must be immediate
                    if running.poll() is None:
                        os.killpg(running.pid, signal.SIGINT)
                        with contextlib.suppress(subprocess.TimeoutExpired):
                            running.wait(60)
        logs = [*folder.glob(".venv/install.log"), *folder.glob(".triton-gateway/logs/pip.log")]
        self._add(shown, took, sum(downloaded(log.read_text(errors="replace")) for log in logs))

    def _add(self, shown: str, seconds: float, mb: float) -> None:
        self.steps.append(Step(self._version, self._way, shown, round(seconds, 1), round(mb, 1)))
        self._say(f"Python {self._version}: {shown}: {seconds:.1f} s, {mb:.0f} MB")


_FREE = ("--port", "0", "--controlplane-port", "0")


def _ready(running: subprocess.Popen[str]) -> str:
    """Return the address of the request that `up` prints, once it is ready."""
    lines: list[str] = []
    until = time.monotonic() + _UP_S + 600
    assert running.stdout is not None
    for line in running.stdout:
        lines.append(line)
        if _READY.search(line):
            return next(found[1] for one in lines if (found := _ASKED.search(one)))
        if time.monotonic() > until:
            break
    raise Wrong(f"it was not ready: {''.join(lines)[-1500:]}")


def _check(address: str) -> None:
    body = json.dumps({"text": "Hello there"}).encode()
    with urllib.request.urlopen(
        urllib.request.Request(address, body, {"content-type": "application/json"}), timeout=30
    ) as reply:
        vector = json.loads(reply.read())["embedding"]
    length = sum(number * number for number in vector)
    if len(vector) != NUMBERS or abs(length - 1) > 1e-3:
        raise Wrong(f"{address} answered {len(vector)} numbers of length {length:.4f}")


@contextlib.contextmanager
def _source(say: Say) -> Iterator[tuple[Path, Path]]:
    """Return a clean clone of the commit here, and its wheel."""
    with tempfile.TemporaryDirectory(prefix="stranger-") as folder:
        source, wheels = Path(folder) / "source", Path(folder) / "dist"
        subprocess.run(["git", "clone", "-q", str(ROOT), str(source)], check=True)
        say("building the wheel")
        pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "wheel", "-q", "--no-deps"]
        subprocess.run([*pip, "-w", str(wheels), "."], cwd=source, check=True)
        yield source, next(wheels.glob("*.whl"))


def environment(*, pinned: bool, home: Path) -> dict[str, str]:
    """Return a new user's environment: its own home, nothing of ours; with pip's cache only if ``pinned``."""
    kept = {
        name: value for name, value in os.environ.items()
        if not name.startswith(("CLEARML_", "TRAINS_", "TRITON_GATEWAY_", "VIRTUAL_ENV", "PYTHON", "MAKE", "MFLAGS"))
    }  # fmt: skip
    if pinned:
        cache = os.environ.get("PIP_CACHE_DIR") or str(Path.home() / ".cache" / "pip")
        return {**kept, "HOME": str(home), "PIP_CONSTRAINT": str(ROOT / "constraints.txt"), "PIP_CACHE_DIR": cache}
    return {**kept, "HOME": str(home), "PIP_NO_CACHE_DIR": "1"}


def page(found: Mapping[str, Any]) -> str:
    """Return the tables of docs/first-answer.md."""
    rows = [["Python", "way", "command", "seconds", "MB"]]
    ways: dict[tuple[str, str], list[Mapping[str, Any]]] = {}
    for step in found["steps"]:
        ways.setdefault((step["python"], step["way"]), []).append(step)
    for (python, way), steps in ways.items():
        rows += [[python, way, f"`{one['typed']}`", f"{one['seconds']:.1f}", f"{one['mb']:.0f}"] for one in steps]
        total = sum(one["seconds"] for one in steps), sum(one["mb"] for one in steps)
        rows.append([python, way, "**from nothing to the first answer**", f"**{total[0]:.0f}**", f"**{total[1]:.0f}**"])
    peers = [["project", "how", "commands"], *map(list, PEERS)]
    return "\n\n".join([
        f"Measured on {found['cores']} cores with a background load of {found['load']:.1f}, without pip's cache.",
        table(rows, align=["---", "---", "---", "---:", "---:"]),
        "For comparison, the commands that other projects' pages name. They were not measured here:",
        table(peers),
    ])  # fmt: skip


def main(argv: Sequence[str] | None = None) -> int:
    """Ask; 1 where an answer is wrong."""
    options = parser(__name__, __doc__)
    options.add_argument("--python", action="append", choices=PYTHONS, help="may be repeated [all]")
    options.add_argument("--way", action="append", choices=WAYS, help="may be repeated [both]")
    options.add_argument("--pinned", action="store_true", help="the versions of constraints.txt, from pip's cache")
    options.add_argument("--save", action="store_true", help=f"keep it in benchmarks/{SAVES}")
    given = options.parse_args(argv)
    say = narrator()
    steps: list[Step] = []
    load, failed = os.getloadavg()[0], False
    with _source(say) as (source, wheel):
        for version in given.python or PYTHONS:
            python = find(version)
            if not python:
                sys.stdout.write(f"== NOT RUN: Python {version} is not installed\n")
                continue
            for way in given.way or WAYS:
                with tempfile.TemporaryDirectory(prefix="stranger-") as place:
                    env = environment(pinned=given.pinned, home=Path(place))
                    one = Stranger(python, version, way, Path(place), env, say)
                    try:
                        one.wheel(wheel) if way == "wheel" else one.clone(source)
                        sys.stdout.write(f"== Python {version}, {way}: answers\n")
                    except Wrong as error:
                        failed = True
                        sys.stdout.write(f"== FAILED: Python {version}, {way}: {error}\n")
                    steps += one.steps
    found = {"cores": os.cpu_count(), "load": load, "steps": [asdict(step) for step in steps]}
    sys.stdout.write(table([[*map(str, asdict(step).values())] for step in steps] or [["nothing"]]) + "\n")
    if given.save and not failed:
        save("first-answer", found)
        write_pages()
    return int(failed)


def write_pages() -> None:
    """Write the page that is made of the saved result."""
    put(DOCS / "first-answer.md", "first-answer", page(saved("first-answer")))

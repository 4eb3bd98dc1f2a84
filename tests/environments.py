"""Virtual environments of the peers, created from PyPI once and kept. Each peer runs with the versions that it
requires.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

REQUIREMENTS: dict[str, tuple[str, ...]] = {
    # clearml-serving lists only the CLI's requirements; these are the imports of its serving part. numpy below 2, as in
    # its own container.
    "clearml": (
        "clearml-serving==1.3.5", "fastapi", "uvicorn[standard]", "tritonclient[grpc]", "tokenizers", "transformers",
        "numpy<2", "requests",
    ),
    # client versions that work together
    "clients": (
        "cohere==7.3.1", "huggingface-hub==1.33.0", "langchain-huggingface==1.2.3", "langchain-openai==1.7.3",
        "llama-index-embeddings-text-embeddings-inference==0.6.0", "openai==3.54.0",
    ),
    "kserve": ("kserve==0.21.0", "tokenizers"),
    # the last tritonclient whose perf_analyzer runs on Debian 12's C library
    "perf_analyzer": ("tritonclient==2.51.0", "nvidia-cuda-runtime-cu12==12.9.79"),
    "profile": ("py-spy>=0.4",),
}  # fmt: skip


class CannotInstall(Exception):
    """An environment cannot be made; the message is pip's last line."""


def python(root: Path, name: str, say: Callable[[str], None]) -> Path:
    """Return the Python of environment ``name`` under ``root``; it is created if it is missing or was created
    differently.
    """
    wanted = REQUIREMENTS[name]
    digest = hashlib.sha256(json.dumps([wanted, sys.version_info[:2]]).encode()).hexdigest()[:10]
    folder = root / f"{name}-{digest}"
    executable = folder / "bin" / "python"
    root.mkdir(parents=True, exist_ok=True)
    with (root / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (folder / ".complete").exists():
            say(f"installing {', '.join(wanted)} into an environment of its own (once)")
            _run([sys.executable, "-m", "venv", "--clear", str(folder)])
            _run([str(executable), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *wanted])
            (folder / ".complete").touch()
    return executable


def _run(argv: list[str]) -> None:
    done = subprocess.run(argv, capture_output=True, text=True, timeout=1800, check=False)
    if done.returncode:
        lines = [line for line in done.stderr.splitlines() if line.strip() and not line.startswith("WARNING")]
        raise CannotInstall(lines[-1] if lines else f"{argv[0]} ended with {done.returncode}")

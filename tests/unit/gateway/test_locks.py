"""File locks; and what macOS lacks: the gateway is imported, started and called without it."""

from __future__ import annotations

import os
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest

from gateway import locks
from tests.processes import free_port
from tests.waiting import LIMIT_S, until

ROOT = Path(__file__).parents[3]

THIRD_PARTIES = "import asyncio, clearml, ctypes, fastapi, grpc, multiprocessing, numpy, os, psutil, pydantic, requests"
"""Whose code is not looked at: it is imported before anything is taken away."""

MACOS = f"""
{THIRD_PARTIES}, fcntl, io, sys, tritonclient.grpc
for name in [name for name in dir(fcntl) if "SEAL" in name]:
    delattr(fcntl, name)
del os.memfd_create
library = ctypes.CDLL(None)
class Library:
    def __getattr__(self, name):
        if name == "prctl":
            raise AttributeError(name)
        return getattr(library, name)
ctypes.CDLL = lambda name, **kwargs: Library()
opened = io.open
def without_proc(path, *args, **kwargs):
    if str(path).startswith("/proc"):
        raise FileNotFoundError(2, "No such file", str(path))
    return opened(path, *args, **kwargs)
io.open = without_proc
"""


def test_every_module_can_be_imported_on_macos() -> None:
    """Except hook processes, which report that when they are requested."""
    modules = [
        ".".join(path.relative_to(ROOT).with_suffix("").parts)
        for folder in ("gateway", "preprocessing") for path in sorted((ROOT / folder).rglob("*.py"))
        if path.name not in ("__init__.py", "__main__.py", "child.py")
    ]  # fmt: skip
    modules += ["gateway.__main__", "deploy.cli.commands.serve", "deploy.laptop.state_dir", "deploy.cli.key_file"]
    code = f"{MACOS}\nimport importlib\nfor name in {modules}:\n    importlib.import_module(name)\nprint('all')"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=LIMIT_S, check=False, cwd=ROOT
    )
    assert ("all\n", "") == (done.stdout, done.stderr)


@pytest.mark.long
def test_the_gateway_starts_and_answers_on_macos(tmp_path: Path) -> None:
    """With one worker, and unreachable Triton and registry."""
    port = free_port()
    code = f"{MACOS}\nfrom deploy.cli.main import main\nsys.argv = ['triton-gateway', 'serve']\nmain()"
    env = {
        **os.environ, "TRITON_GATEWAY_PORT": str(port), "TRITON_GATEWAY_TRITON_GRPC": "127.0.0.1:1",
        "TRITON_GATEWAY_STATE_DIR": str(tmp_path),
        "CLEARML_API_HOST": "http://127.0.0.1:1", "CLEARML_API_ACCESS_KEY": "key", "HOME": str(tmp_path),
        "CLEARML_API_SECRET_KEY": "secret", "CLEARML_SERVING_TASK_ID": "0" * 32,
    }  # fmt: skip
    with (tmp_path / "log").open("wb") as log:
        running = subprocess.Popen([sys.executable, "-c", code], stdout=log, stderr=log, env=env, cwd=ROOT)
    try:

        def lives() -> bool:
            assert running.poll() is None, (tmp_path / "log").read_text()
            try:
                with urllib.request.urlopen(f"http://127.0.0.1:{port}/v2/health/live", timeout=LIMIT_S) as reply:
                    return bool(reply.status == 200)
            except OSError:
                return False

        until(lives)
    finally:
        running.terminate()
        running.wait(LIMIT_S)
    assert "Traceback" not in (tmp_path / "log").read_text()


def test_a_lock_is_held_until_its_file_is_closed(tmp_path: Path) -> None:
    """A caller that does not wait gets an error."""
    path = tmp_path / "lock"
    with path.open("a") as first:
        locks.lock(first)
        with path.open("a") as second, pytest.raises(BlockingIOError):
            locks.lock(second, waits=False)
    with path.open("a") as third:
        locks.lock(third, waits=False)

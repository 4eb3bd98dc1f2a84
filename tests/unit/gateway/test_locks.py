"""File locks; and what macOS lacks: every module can be imported without it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from gateway import locks
from tests.waiting import LIMIT_S

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


def test_a_lock_is_held_until_its_file_is_closed(tmp_path: Path) -> None:
    """A caller that does not wait gets an error."""
    path = tmp_path / "lock"
    with path.open("a") as first:
        locks.lock(first)
        with path.open("a") as second, pytest.raises(BlockingIOError):
            locks.lock(second, waits=False)
    with path.open("a") as third:
        locks.lock(third, waits=False)

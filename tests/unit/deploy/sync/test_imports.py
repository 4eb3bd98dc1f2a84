"""What runs beside Triton stays small: the container holds no web framework, no torch, no transformers."""

from __future__ import annotations

import subprocess
import sys

FOREIGN = ("torch", "transformers", "fastapi", "starlette", "uvicorn", "onnxruntime", "matplotlib")

SCRIPT = f"""
import sys
import deploy.cli.main, deploy.cli.commands.sync, deploy.sync.run, deploy.sync.open_addresses
print(*sorted(set(sys.modules) & set({FOREIGN!r})))
"""


def test_the_sync_command_imports_nothing_that_its_image_does_not_need() -> None:
    """All that ``triton-gateway sync`` ever imports, in a process of its own."""
    done = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, timeout=120, check=True)
    assert "" == done.stdout.strip()

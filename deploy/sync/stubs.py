"""Finds the python backend's stub processes of each model. Model sync calls it in every round.

If the kernel kills a stub (out of memory), Triton 2.51 keeps reporting the model as READY, answers every request with
"Stub process is not healthy" and starts no other stub. Only the process table shows it. If the stub had a request, the
others of its model stay for ever beside those of the next load: the model is never fully unloaded. If processes are not
visible (another container), nothing is found and model sync works without them.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

_PROGRAM = b"triton_python_backend_stub"


def stubs_of(repository: Path) -> dict[str, set[int]]:
    """Return the ids of the living stub processes of each model in this repository."""
    roots = {str(repository).encode() + b"/", str(repository.resolve()).encode() + b"/"}
    found: dict[str, set[int]] = {}
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        with contextlib.suppress(OSError):
            arguments = (entry / "cmdline").read_bytes().split(b"\0")  # empty for a zombie
            if len(arguments) < 2 or not arguments[0].endswith(_PROGRAM):
                continue
            model = arguments[1]
            if not model.startswith(b"/"):  # the embedded Triton has relative paths
                model = os.fsencode((entry / "cwd").readlink()) + b"/" + model
            for root in roots:
                if model.startswith(root):
                    name = model[len(root) :].split(b"/", 1)[0].decode(errors="replace")
                    found.setdefault(name, set()).add(int(entry.name))
                    break
    return found

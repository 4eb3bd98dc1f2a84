"""The code blocks of README and docs: where they stand, what kind they are, why one is not run.

Pure. A block is a fence with a language; `text` is what nobody types (a picture in characters, output). A comment
``<!-- not run: REASON -->`` in the line before the fence excuses one. Used by ``test_blocks.py``, which reads every
block with its own program's reader, and by ``tests/e2e/long_pages.py``, which runs the commands.
"""

from __future__ import annotations

import re
import shlex
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tests.waiting import LIMIT_S

ROOT: Final = Path(__file__).parents[2]
PAGES: Final = ("README.md", "CONTRIBUTING.md", "SECURITY.md", "docs")
EXAMPLES: Final = tuple(
    f"examples/{name}/readme.md"
    for name in ("sklearn", "xgboost", "lightgbm", "custom", "huggingface", "pipeline", "async", "ensemble")
)
"""Each behind those that it needs."""

_FENCE: Final = re.compile(
    r"^(?:<!-- not run: (?P<why>[^\n]*) -->\n)?(?P<indent> *)```(?P<kind>[^\n]*)\n(?P<text>.*?)^(?P=indent)```$",
    re.M | re.S,
)
_ASSIGNMENT: Final = re.compile(r"^(?:[A-Z_]+=\S* )+")


@dataclass(frozen=True)
class Block:
    """One fence. ``why`` is its excuse, empty without one."""

    page: str
    line: int
    kind: str
    text: str
    why: str

    def __str__(self) -> str:
        """Where it stands."""
        return f"{self.page}:{self.line}"

    def commands(self) -> list[Command]:
        """What is typed in a console block, each with the lines that are shown behind it."""
        found: list[Command] = []
        for part in re.split(r"^\$ ", self.text, flags=re.M)[1:]:
            typed, _, shown = re.sub(r" *\\\n\s*", " ", part).partition("\n")
            found.append(Command(typed.strip(), shown, is_exact=self.page in EXAMPLES))
        return found


@dataclass(frozen=True)
class Command:
    """One line that is typed, and what the page shows behind it."""

    line: str
    shown: str
    is_exact: bool = False

    @property
    def words(self) -> list[str]:
        """Its words, without comment and variables in front."""
        return shlex.split(_ASSIGNMENT.sub("", re.sub(r"\$\([^)]*\)", "value", self.line)), comments=True)

    def agrees(self, printed: str) -> bool:
        """Whether what was printed is what is shown: `…` is anything, a figure is any figure unless it is exact."""
        pattern = re.escape(self.shown.strip())
        if not self.is_exact:
            pattern = re.sub(r"-?\d+(?:\\\.\d+)*(?:e-?\d+)?", r"-?[\\d.]+(?:e-?\\d+)?", pattern)
        pattern = pattern.replace("…", ".*?")
        return re.search(pattern, printed.strip(), re.S) is not None

    def typed(self, once: Callable[[], tuple[int, str]]) -> tuple[int, str]:
        """Return exit code and output of ``once``. A command that only asks is typed again while it is not answered as
        shown: readers type more slowly, and what a line before it has changed is live by then.
        """
        only_asks = re.match(r"curl |triton-gateway (?:status|history|canary status|default \S+$)", self.line)
        code, printed = once()
        deadline = time.monotonic() + LIMIT_S
        while only_asks and time.monotonic() < deadline:
            if self.agrees(printed) and (code == 0 or self.shown.strip()):
                break
            time.sleep(1)
            code, printed = once()
        return code, printed


def blocks(*pages: str, root: Path = ROOT) -> Iterator[Block]:
    """Every block of these pages or of ``PAGES``, in order; decisions tell of the past and hold none to type."""
    for name in pages or PAGES:
        path = root / name
        for page in [path] if path.is_file() else sorted(path.glob("*.md")):
            text = page.read_text(encoding="utf-8")
            for fence in _FENCE.finditer(text):
                content = re.sub(rf"^{fence['indent']}", "", fence["text"], flags=re.M)
                yield Block(
                    str(page.relative_to(root)), text[: fence.start()].count("\n") + 1, fence["kind"].strip(), content,
                    fence["why"] or "",
                )  # fmt: skip

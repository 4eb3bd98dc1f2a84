"""``python -m benchmarks QUESTION``: answers one question; without one, it measures the cost beside peers."""

from __future__ import annotations

import ast
import importlib
import sys
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

QUESTIONS = Path(__file__).parent / "questions"
DEFAULT = "cost-beside-peers"


@dataclass(frozen=True, slots=True)
class Question:
    """The description that a file of ``questions/`` gives of itself."""

    name: str
    asks: str
    takes: str
    saves: str


def questions() -> list[Question]:
    """Return all questions, by name. The files are not imported, because some need torch."""
    return [_read(path) for path in sorted(QUESTIONS.glob("*.py")) if path.name != "__init__.py"]


def _read(path: Path) -> Question:
    tree = ast.parse(path.read_text())
    told = {
        name.id: ast.literal_eval(node.value)
        for node in tree.body
        if isinstance(node, ast.Assign)
        for name in node.targets
        if isinstance(name, ast.Name) and name.id in ("TAKES", "SAVES")
    }
    asks = (ast.get_docstring(tree) or "").partition("\n\n")[0].replace("\n", " ")
    return Question(path.stem.replace("_", "-"), asks, told.get("TAKES", ""), told.get("SAVES", ""))


def usage() -> str:
    """Return the help: every question, how long its answer takes, where it is saved."""
    lines = [
        "usage: python -m benchmarks [QUESTION] [OPTIONS]", "",
        f"Without a QUESTION: {DEFAULT}. `python -m benchmarks QUESTION --help` has its options.", "",
    ]  # fmt: skip
    for one in questions():
        lines += [one.name, *textwrap.wrap(one.asks, 104, initial_indent="    ", subsequent_indent="    ")]
        lines += [f"    ({one.takes}; {one.saves or 'printed'})"]
    lines += ["", "pages", "    Write the pages that are made of saved results again."]
    return "\n".join(lines) + "\n"


def main(argv: Sequence[str] | None = None) -> int:
    """Answer the named question."""
    given = sys.argv[1:] if argv is None else list(argv)
    if given[:1] in (["-h"], ["--help"]):
        sys.stdout.write(usage())
        return 0
    name, rest = (DEFAULT, given) if not given or given[0].startswith("-") else (given[0], given[1:])
    known = [one.name for one in questions()]
    if name not in [*known, "pages"]:
        sys.stderr.write(f"error: no question {name!r}; there are {', '.join(known)}\n")
        return 2
    module = "benchmarks.pages" if name == "pages" else f"benchmarks.questions.{name.replace('-', '_')}"
    try:
        return int(importlib.import_module(module).main(rest))
    except KeyboardInterrupt:
        return 130


if __name__ == "__main__":
    sys.exit(main())

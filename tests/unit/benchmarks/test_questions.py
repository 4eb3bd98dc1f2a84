"""One file a question: it asks, says how long the answer takes and where it is kept, and leans on no other question."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from benchmarks.__main__ import QUESTIONS, main, questions

ROOT = QUESTIONS.parents[1]
EVERY = questions()
DOCUMENTS = [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), ROOT / "benchmarks" / "README.md"]


def imported(path: Path) -> set[str]:
    """The modules of this tree that a file imports."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module:
            found |= {node.module, *(f"{node.module}.{name.name}" for name in node.names)}
    return {name for name in found if name.startswith("benchmarks")}


def test_every_file_asks_a_question_and_says_what_the_answer_takes() -> None:
    """The first line ends in a question mark; a result that is kept is kept below results/ or docs/."""
    assert [] == [one.name for one in EVERY if not one.asks.endswith("?")]
    assert [] == [one.name for one in EVERY if not one.takes]
    assert [] == [one.name for one in EVERY if one.saves and not re.match(r"(results|docs)/", one.saves)]


def test_no_question_needs_another_and_what_is_shared_needs_none() -> None:
    """What two of them need lies in shared/."""
    for path in QUESTIONS.glob("*.py"):
        assert [] == [name for name in imported(path) if name.startswith("benchmarks.questions")], path
    for part in ("shared", "peers", "autoscale"):
        for path in (QUESTIONS.parent / part).rglob("*.py"):
            assert [] == [name for name in imported(path) if name.startswith("benchmarks.questions")], path


def test_the_help_lists_every_question(capsys: pytest.CaptureFixture[str]) -> None:
    """With how long it takes; an unknown one is refused with the list."""
    assert 0 == main(["--help"])
    shown = capsys.readouterr().out
    assert [] == [one.name for one in EVERY if f"\n{one.name}\n" not in shown or one.takes not in shown]
    assert 2 == main(["cost-of-nothing"])
    assert EVERY[0].name in capsys.readouterr().err


@pytest.mark.parametrize("name", [one.name for one in EVERY])
def test_every_question_has_a_command_line(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    """That can be asked for its options without measuring anything."""
    with pytest.raises(SystemExit) as ended:
        main([name, "--help"])
    assert 0 == ended.value.code
    assert f"python -m benchmarks {name}" in capsys.readouterr().out


def test_documents_name_questions_that_there_are() -> None:
    """Commands that a reader may copy."""
    known = {one.name for one in EVERY} | {"pages", "QUESTION"}
    for path in DOCUMENTS:
        if path.name == "CHANGELOG.md":
            continue
        text = path.read_text()
        named = set(re.findall(r"python -m benchmarks ([a-z][a-z-]+)", text))
        assert named <= known, path
        assert set(re.findall(r"python -m benchmarks\.([a-z.]+)", text)) <= {"shared.load"}, path

"""Every question can be found, and asked for what it takes."""

from __future__ import annotations

import pytest

from benchmarks.__main__ import main, questions

EVERY = questions()


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

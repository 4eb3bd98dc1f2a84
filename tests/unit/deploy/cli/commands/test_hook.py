"""`triton-gateway hook test`: the output for the author of a hook, above all when it fails."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import joblib
import pytest
from sklearn.linear_model import LogisticRegression

from deploy.cli.main import main


@pytest.fixture
def code(tmp_path: Path) -> Any:
    """Write a class; its file."""

    def write(source: str) -> str:
        (tmp_path / "preprocess.py").write_text(source)
        return str(tmp_path / "preprocess.py")

    return write


DIVIDES = """
class Preprocess:
    def process(self, body, state, collect_custom_statistics_fn=None):
        if body["n"] < 0:
            raise ValueError("n must not be negative")
        collect_custom_statistics_fn({"n": body["n"]})
        return {"share": 1 / body["n"]}
"""


def test_answer_is_on_stdout_and_the_rest_beside_it(code: Any, capsys: pytest.CaptureFixture[str]) -> None:
    """The answer alone is on stdout, so it can be piped."""
    assert 0 == main(["hook", "test", code(DIVIDES), "--body", '{"n": 4}'])
    out, err = capsys.readouterr()
    assert {"share": 0.25} == json.loads(out)
    assert "engine custom" in err
    assert "process" in err
    assert "statistics   n = 4" in err


@pytest.mark.parametrize(
    ("source", "body", "said"),
    [
        ("import nosuchmodule", "{}", "No module named 'nosuchmodule' at preprocess.py:1"),
        ("import os\nclass Preprocess:\n    def process(self, b):\n        os._exit(3)", "{}", "exited with code 3"),
        ("class Preprocess:\n    def process(self, b):\n        while True: pass", "{}", "no answer within 1 s"),
        (DIVIDES, '{"n": 0}', "failed: process raised ZeroDivisionError: division by zero at preprocess.py:7"),
        (DIVIDES, '{"n": -1}', "refused: n must not be negative"),
        (DIVIDES, "{n: 1}", "--body is not JSON"),
    ],
)
def test_every_failure_is_a_few_lines(code: Any, capsys: Any, source: str, body: str, said: str) -> None:
    """A failure shows the error and its line, with exit code 1; 3 means that the body is wrong, not the class."""
    limit = ["--timeout", "1s"] if "no answer" in said else []
    assert (3 if "refused" in said else 1) == main(["hook", "test", code(source), "--body", body, *limit])
    out, err = capsys.readouterr()
    assert ("", True) == (out, said in err)
    assert not any(word in err for word in ("Traceback", "hook_process", "user_code"))


@pytest.mark.parametrize(("has_model", "answer", "said"), [(True, [1], "engine sklearn"), (False, [[5]], "not run")])
def test_model_of_an_engine_predicts(
    code: Any, tmp_path: Path, capsys: Any, has_model: bool, answer: list[Any], said: str
) -> None:
    """The engine is known from the bundle. Without a model, preprocess is tried alone, and that is said."""
    joblib.dump(LogisticRegression().fit([[0.0], [4.0]], [0, 1]), tmp_path / "model.pkl")
    source = "class Preprocess:\n    def preprocess(self, body):\n        return [[body['x']]]\n"
    bundle = ["--bundle", str(tmp_path / "model.pkl")] if has_model else []
    assert 0 == main(["hook", "test", code(source), "--body", '{"x": 5}', *bundle])
    out, err = capsys.readouterr()
    assert (answer, True) == (json.loads(out), said in err)

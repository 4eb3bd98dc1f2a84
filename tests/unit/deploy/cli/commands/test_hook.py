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

    def write(source: str, name: str = "preprocess.py") -> str:
        (tmp_path / name).write_text(source)
        return str(tmp_path / name)

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


def test_failure_shows_the_line_of_the_class_and_nothing_of_ours(code: Any, capsys: pytest.CaptureFixture[str]) -> None:
    """There is no traceback through our framework."""
    assert 1 == main(["hook", "test", code(DIVIDES), "--body", '{"n": 0}'])
    out, err = capsys.readouterr()
    assert "" == out
    assert "failed: process raised ZeroDivisionError: division by zero at preprocess.py:7" in err
    assert not any(word in err for word in ("Traceback", "hook_process", "user_code"))


def test_refusal_is_told_apart_by_the_exit_code(code: Any, capsys: pytest.CaptureFixture[str]) -> None:
    """A ValueError means that the body is wrong, not the class."""
    assert 3 == main(["hook", "test", code(DIVIDES), "--body", '{"n": -1}'])
    assert "refused: n must not be negative" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("source", "body", "said"),
    [
        ("import nosuchmodule", "{}", "No module named 'nosuchmodule' at preprocess.py:1"),
        ("class Preprocess:\n    def process(self, body:\n", "{}", "SyntaxError"),
        ("import os\nclass Preprocess:\n    def process(self, b):\n        os._exit(3)", "{}", "exited with code 3"),
        ("class Preprocess:\n    def process(self, b):\n        while True: pass", "{}", "no answer within 1 s"),
        ("class Preprocess:\n    def process(self, b):\n        return object()", "{}", "cannot be written as JSON"),
        (DIVIDES, "{n: 1}", "--body is not JSON"),
        (DIVIDES, "@/no/such/file.json", "cannot be read"),
    ],
)
def test_every_failure_is_a_few_lines(code: Any, capsys: Any, source: str, body: str, said: str) -> None:
    """A failure shows the error and its line, with exit code 1."""
    limit = ["--timeout", "1s"] if "no answer" in said else []
    assert 1 == main(["hook", "test", code(source), "--body", body, *limit])
    err = capsys.readouterr().err
    assert said in err
    assert "Traceback" not in err


def test_model_of_an_engine_predicts(code: Any, tmp_path: Path, capsys: Any) -> None:
    """The engine is known from the bundle."""
    joblib.dump(LogisticRegression().fit([[0.0], [4.0]], [0, 1]), tmp_path / "model.pkl")
    source = "class Preprocess:\n    def preprocess(self, body):\n        return [[body['x']]]\n"
    assert 0 == main(["hook", "test", code(source), "--body", '{"x": 5}', "--bundle", str(tmp_path / "model.pkl")])
    out, err = capsys.readouterr()
    assert [1] == json.loads(out)
    assert "engine sklearn" in err


def test_without_a_model_preprocess_is_tried_alone(code: Any, capsys: Any) -> None:
    """The output says that the model was not run."""
    source = "class Preprocess:\n    def preprocess(self, body):\n        return [body['x']]\n"
    assert 0 == main(["hook", "test", code(source), "--body", '{"x": 5}'])
    out, err = capsys.readouterr()
    assert [5] == json.loads(out)
    assert "the model was not run" in err


def test_a_bundle_that_is_not_there_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Before anything is started."""
    code = tmp_path / "preprocess.py"
    code.write_text("class Preprocess:\n    pass\n")
    assert 2 == main(["hook", "test", str(code), "--body", "{}", "--bundle", str(tmp_path / "missing")])
    assert "missing' does not exist" in capsys.readouterr().err

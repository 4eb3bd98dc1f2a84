"""Rows of data sets: every kind of file; errors name line and column."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest

from deploy.cli import data_rows
from deploy.cli.data_rows import Row, Text
from deploy.tools.errors import DeployError


def written(folder: Path, name: str, content: str | bytes) -> Path:
    """A file with this in it."""
    path = folder / name
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.csv", 'text,label\n"good, very",1\n\nbad,0\n'), ("a.csv", '\ufefftext,label\r\n"good, very",1\r\nbad,0'),
        ("a.TSV", "text\tlabel\ngood, very\t1\nbad\t0\n"),
    ],
)  # fmt: skip
def test_separated_values_are_rows_by_the_names_of_the_first_line(tmp_path: Path, name: str, content: str) -> None:
    """Quotes, empty lines, a byte order mark."""
    rows = [row.values for row in data_rows.read(written(tmp_path, name, content))]
    assert [{"text": "good, very", "label": "1"}, {"text": "bad", "label": "0"}] == rows


def test_a_text_of_several_lines_stands_where_it_ends(tmp_path: Path) -> None:
    """Lines are counted as in an editor."""
    rows = [*data_rows.read(written(tmp_path, "a.csv", 'text\n"one\ntwo"\nthree\n'))]
    assert [Row("line 3", {"text": "one\ntwo"}), Row("line 4", {"text": "three"})] == rows


def test_json_lines_are_objects(tmp_path: Path) -> None:
    """Empty lines are skipped."""
    path = written(tmp_path, "a.jsonl", '{"text": "a"}\n\n{"text": "b", "n": 1}')
    assert [Row("line 1", {"text": "a"}), Row("line 3", {"text": "b", "n": 1})] == [*data_rows.read(path)]


@pytest.mark.parametrize(
    ("name", "content", "says"),
    [
        ("a.csv", "text,label\na,1\nb\n", "line 3, column 2: the line has 1 column, but the first line names 2"),
        ("a.csv", "text\na,b,c\n", "line 2, column 2: the line has 3 columns, but the first line names 1"),
        ("a.csv", 'text\n"never ends\n', "line 2: unexpected end of data"),
        ("a.csv", 'text\na\n"never ends\nb\nc\n', "line 3: unexpected end of data"),
        ("a.jsonl", '{"text": "a"}\n{"text": b}\n', "line 2, column 10: Expecting value"),
        ("a.jsonl", '["a"]\n', "line 1, column 1: this is not a JSON object"),
        ("a.jsonl", "[" * 100_000, "line 1: the JSON is nested too deeply"),
        ("a.jsonl", b'{"text": "\xff"}\n', "is not UTF-8: invalid start byte at byte 10"),
        ("a.csv", b"text\n\xff\n", "is not UTF-8"),
        ("a.xlsx", "", "has a format that is not supported"),
    ],
)
def test_what_cannot_be_read_is_told_with_where_it_stands(
    tmp_path: Path, name: str, content: str | bytes, says: str
) -> None:
    """Messages name the file, the line and, if known, the column."""
    with pytest.raises(DeployError) as told:
        [*data_rows.read(written(tmp_path, name, content))]
    assert says in told.value.message
    assert name in told.value.message


def test_files_that_are_not_there_are_told(tmp_path: Path) -> None:
    """The same holds for other folders, and for folders with several splits."""
    with pytest.raises(DeployError, match="there is no file"):
        data_rows.read(tmp_path / "none.csv")
    with pytest.raises(DeployError, match=r"no usable state\.json"):
        data_rows.read(tmp_path)
    for split in ("train", "test"):
        (tmp_path / split).mkdir()
        written(tmp_path / split, "state.json", "{}")
    written(tmp_path, "dataset_dict.json", "{}")
    with pytest.raises(DeployError, match="has several splits: test, train") as told:
        data_rows.read(tmp_path)
    assert str(tmp_path / "test") in str(told.value.hint)


@pytest.mark.parametrize("name", ["a.parquet", "a.arrow"])
def test_without_pyarrow_it_is_said_how_to_get_it(tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """pyarrow is not one of our requirements."""
    for module in ("pyarrow", "pyarrow.parquet", "pyarrow.ipc"):
        monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(DeployError, match="pyarrow is not installed") as told:
        [*data_rows.read(written(tmp_path, name, b""))]
    assert re.fullmatch(r"run `pip install ('pyarrow<22'|pyarrow)`", str(told.value.hint))


def test_a_saved_data_set_is_read_file_by_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The files are read in the order of its state file, and rows are numbered across files."""
    state = {"_data_files": [{"filename": "data-1.arrow"}, {"filename": "data-0.arrow"}]}
    written(tmp_path, "state.json", json.dumps(state))
    monkeypatch.setattr(data_rows, "_arrow", lambda path: iter([Row("row 1", {"text": path.name})]))
    assert [Row("row 1", {"text": "data-1.arrow"}), Row("row 2", {"text": "data-0.arrow"})] == [
        *data_rows.read(tmp_path)
    ]


def test_texts_and_labels_are_taken_out_of_their_columns() -> None:
    """Rows without a text are skipped and reported."""
    rows = [Row("line 2", {"t": "a", "l": 1}), Row("line 3", {"t": " ", "l": 0}), Row("line 4", {"t": None, "l": 0})]
    empty: list[str] = []
    assert [Text("line 2", "a", "1")] == [*data_rows.texts_of(rows, Path("f"), "t", "l", empty)]
    assert ["line 3", "line 4"] == empty


@pytest.mark.parametrize(
    ("values", "says", "hint"),
    [
        (
            {"a": "x", "b": "y"},
            "f line 2: there is no column text",
            "its columns are a, b; name one with --text-column",
        ),
        ({"text": "x"}, "f line 2: there is no column label", "its columns are text; name one with --label-column"),
        (
            {"text;label": "x;y"},
            "f: the columns are separated by semicolons, not by commas",
            "tabs in a file whose name ends",
        ),
        ({"text": 5, "label": "x"}, "f line 2, column text: expected a text, but found int", "--text-column"),
    ],
)
def test_a_column_that_is_not_there_or_no_text_is_told(values: Any, says: str, hint: str) -> None:
    """The message lists the existing columns."""
    with pytest.raises(DeployError) as told:
        [*data_rows.texts_of([Row("line 2", values)], Path("f"), "text", "label", [])]
    assert says == told.value.message
    assert hint in str(told.value.hint)


def test_of_many_some_are_drawn_in_their_order_and_always_the_same() -> None:
    """Each item has the same chance; of few items, all are taken."""
    assert [*range(5)] == data_rows.sample(range(5), 10)
    drawn = data_rows.sample(range(10_000), 1000)
    assert drawn == sorted(set(drawn)) == data_rows.sample(range(10_000), 1000)
    assert 1000 == len(drawn)
    assert 4500 < sum(drawn) / len(drawn) < 5500

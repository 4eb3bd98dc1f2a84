"""Rows of data sets: every kind of file; errors name line and column."""

from __future__ import annotations

from pathlib import Path

import pytest

from deploy.cli import data_rows
from deploy.cli.data_rows import Text
from deploy.tools.errors import DeployError


def written(folder: Path, name: str, content: str | bytes) -> Path:
    """A file with this in it."""
    path = folder / name
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


def texts(path: Path, label: str | None = "label") -> list[Text]:
    """The texts of a file."""
    return [*data_rows.texts(path, "text", label, [])]


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.csv", 'text,label\n"good, very",1\n\nbad,0\n'), ("a.csv", '\ufefftext,label\r\n"good, very",1\r\nbad,0'),
        ("a.TSV", "text\tlabel\ngood, very\t1\nbad\t0\n"), ("a.jsonl", '{"text": "good, very", "label": 1}\n\n'
         '{"text": "bad", "label": 0, "n": 1}'),
    ],
)  # fmt: skip
def test_rows_are_read_by_the_names_of_their_columns(tmp_path: Path, name: str, content: str) -> None:
    """Quotes, empty lines, a byte order mark."""
    assert [("good, very", "1"), ("bad", "0")] == [one[1:] for one in texts(written(tmp_path, name, content))]


def test_a_text_of_several_lines_stands_where_it_ends_and_rows_without_one_are_skipped(tmp_path: Path) -> None:
    """Lines are counted as in an editor."""
    path, empty = written(tmp_path, "a.csv", 'text\n"one\ntwo"\n" "\nthree\n'), list[str]()
    assert [Text("line 3", "one\ntwo", ""), Text("line 5", "three", "")] == [
        *data_rows.texts(path, "text", None, empty)
    ]
    assert ["line 4"] == empty


@pytest.mark.parametrize(
    ("name", "content", "says"),
    [
        ("a.csv", "text,label\na,1\nb\n", "line 3 has 1 columns; the first line names 2"),
        ("a.csv", 'text,label\n"never ends\n', "line 2: unexpected end of data"),
        ("a.jsonl", '{"text": "a", "label": 1}\n{"text": b}\n', "line 2: Expecting value"),
        ("a.jsonl", '["a"]\n', "line 1: this is not a JSON object"),
        ("a.jsonl", "[" * 100_000, "line 1: "),
        ("a.jsonl", b'{"text": "\xff"}\n', "is not UTF-8: invalid start byte at byte 10"),
        ("a.csv", b"text\n\xff\n", "is not UTF-8"),
        ("a.xlsx", "", "has a format that is not supported"),
        ("a.csv", "a,label\n1,2\n", "line 2: there is no column text"),
        ("a.csv", "text,b\n1,2\n", "line 2: there is no column label"),
        ("a.jsonl", '{"text": 5, "label": 1}', "line 1, column text: expected a text, but found int"),
    ],
)
def test_what_cannot_be_read_is_told_with_where_it_stands(
    tmp_path: Path, name: str, content: str | bytes, says: str
) -> None:
    """Messages name the file and the line."""
    with pytest.raises(DeployError) as told:
        texts(written(tmp_path, name, content))
    assert says in told.value.message
    assert name in told.value.message

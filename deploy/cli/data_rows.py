"""Reads the texts of data sets: CSV, TSV and JSON lines. Errors name line and row."""

from __future__ import annotations

import csv
import json
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from deploy.tools.errors import DeployError


class Text(NamedTuple):
    """One text, its place in the file, and its label if there is a label column."""

    where: str
    text: str
    label: str


def texts(path: Path, text_column: str, label_column: str | None, empty: list[str]) -> Iterator[Text]:
    """Yield the texts of a file; places of rows without one are appended to ``empty``. Raises ``DeployError``."""
    readers = {".csv": _separated, ".tsv": _separated, ".jsonl": _json_lines}
    read = readers.get(path.suffix.lower())
    if read is None:
        raise DeployError(f"{path} has a format that is not supported", hint=f"use {', '.join(readers)}")
    try:
        for where, values in read(path):
            for column in (text_column, *([label_column] if label_column else [])):
                if column not in values:
                    raise DeployError(
                        f"{path} {where}: there is no column {column}",
                        hint=f"its columns are {', '.join(map(str, values)) or 'none'}; name one with "
                        + ("--text-column" if column == text_column else "--label-column"),
                    )
            text = values[text_column]
            if text is None or (isinstance(text, str) and not text.strip()):
                empty.append(where)
            elif isinstance(text, str):
                yield Text(where, text, "" if label_column is None else str(values[label_column]))
            else:
                raise DeployError(
                    f"{path} {where}, column {text_column}: expected a text, but found {type(text).__name__}",
                    hint="name the column of the texts with --text-column",
                )
    except UnicodeDecodeError as error:
        hint = "convert the file to UTF-8"
        raise DeployError(f"{path} is not UTF-8: {error.reason} at byte {error.start}", hint=hint) from error
    except OSError as error:
        raise DeployError(f"{path} cannot be read: {error.strerror or error}") from error


def _separated(path: Path) -> Iterator[tuple[str, Mapping[str, Any]]]:
    csv.field_size_limit(min(sys.maxsize, 1 << 30))
    with path.open(encoding="utf-8-sig", newline="") as file:
        reader = csv.reader(file, delimiter="\t" if path.suffix.lower() == ".tsv" else ",", strict=True)
        try:
            head = next(reader, [])
            for fields in reader:
                if fields and len(fields) != len(head):
                    raise DeployError(
                        f"{path} line {reader.line_num} has {len(fields)} columns; the first line names {len(head)}",
                        hint='write a text with commas or quotes in "…", and double the quotes in it',
                    )
                if fields:
                    yield f"line {reader.line_num}", dict(zip(head, fields, strict=True))
        except csv.Error as error:
            raise DeployError(f"{path} line {reader.line_num}: {error}") from error


def _json_lines(path: Path) -> Iterator[tuple[str, Mapping[str, Any]]]:
    with path.open(encoding="utf-8-sig") as file:
        for number, line in enumerate(file, 1):
            if line.strip():
                try:
                    values = json.loads(line)
                except (ValueError, RecursionError) as error:
                    raise DeployError(f"{path} line {number}: {error}", hint="write one JSON object a line") from error
                if not isinstance(values, dict):
                    raise DeployError(f"{path} line {number}: this is not a JSON object", hint='write {"text": "…"}')
                yield f"line {number}", values

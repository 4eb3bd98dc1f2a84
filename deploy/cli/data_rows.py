"""Reads rows of data sets: CSV, JSON lines, Parquet, and folders that Hugging Face's ``datasets`` saved.

Called by ``drift capture --from``. Rows are read one by one, so a file may be larger than the memory. Errors name the
line or row. The only user of pyarrow here.
"""

from __future__ import annotations

import csv
import importlib
import json
import random
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeVar

import numpy as np

from deploy.tools.errors import DeployError

_STATE: Final = "state.json"
_SPLITS: Final = "dataset_dict.json"
_SHOWN: Final = 8
"""Most column names that a message lists."""
_SEPARATORS: Final = {";": "semicolons", "\t": "tabs", "|": "bars"}


T = TypeVar("T")


class Text(NamedTuple):
    """One text, its place in the file, and its label if there is a label column."""

    where: str
    text: str
    label: str


class Row(NamedTuple):
    """One row and its place in the file: ``line 7`` or ``row 7``."""

    where: str
    values: Mapping[str, Any]


def read(path: Path) -> Iterator[Row]:
    """Return the rows of a file or folder. Raises ``DeployError``, at once or while the rows are read."""
    if path.is_dir():
        return _saved(path)
    readers: Mapping[str, Callable[[Path], Iterator[Row]]] = {
        ".csv": _separated, ".tsv": _separated, ".jsonl": _json_lines, ".ndjson": _json_lines, ".json": _json_lines,
        ".parquet": _parquet, ".arrow": _arrow,
    }  # fmt: skip
    reader = readers.get(path.suffix.lower())
    if reader is None:
        raise DeployError(
            f"{path} has a format that is not supported",
            hint=f"use {', '.join(readers)}, or a folder that `Dataset.save_to_disk` wrote",
        )
    if not path.is_file():
        raise DeployError(f"there is no file {path}")
    return _with_errors(path, reader(path))


def _with_errors(path: Path, rows: Iterator[Row]) -> Iterator[Row]:
    try:
        yield from rows
    except UnicodeDecodeError as error:
        raise DeployError(
            f"{path} is not UTF-8: {error.reason} at byte {error.start}", hint="convert the file to UTF-8"
        ) from error
    except OSError as error:
        raise DeployError(f"{path} cannot be read: {error.strerror or error}") from error


def _separated(path: Path) -> Iterator[Row]:
    csv.field_size_limit(min(sys.maxsize, 1 << 30))
    with path.open(encoding="utf-8-sig", newline="") as file:
        reader = csv.reader(file, delimiter="\t" if path.suffix.lower() == ".tsv" else ",", strict=True)
        begins = 1
        try:
            head = next(reader, [])
            begins = reader.line_num + 1
            for fields in reader:
                begins = reader.line_num + 1
                if not fields:
                    continue
                if len(fields) != len(head):
                    raise DeployError(
                        f"{path} line {reader.line_num}, column {min(len(fields), len(head)) + 1}: the line has "
                        f"{len(fields)} column{'s' * (len(fields) != 1)}, but the first line names {len(head)}",
                        hint='write a text with commas or quotes in "…", and double the quotes in it',
                    )
                yield Row(f"line {reader.line_num}", dict(zip(head, fields, strict=True)))
        except csv.Error as error:
            hint = 'close the text that begins with ", and double the quotes in it' if "end" in str(error) else ""
            raise DeployError(f"{path} line {begins}: {error}", hint=hint) from error


def _json_lines(path: Path) -> Iterator[Row]:
    with path.open(encoding="utf-8-sig") as file:
        for number, line in enumerate(file, 1):
            if not line.strip():
                continue
            try:
                values = json.loads(line)
            except ValueError as error:
                column = getattr(error, "colno", 1)
                raise DeployError(
                    f"{path} line {number}, column {column}: {getattr(error, 'msg', error)}",
                    hint="each line must be one JSON object",
                ) from error
            except RecursionError:
                raise DeployError(f"{path} line {number}: the JSON is nested too deeply") from None
            if not isinstance(values, dict):
                raise DeployError(
                    f"{path} line {number}, column 1: this is not a JSON object", hint='write {"text": "…"}'
                )
            yield Row(f"line {number}", values)


def _parquet(path: Path) -> Iterator[Row]:
    parquet = _pyarrow("pyarrow.parquet")
    try:
        yield from _numbered(parquet.ParquetFile(path).iter_batches())
    except _pyarrow("pyarrow").ArrowException as error:
        raise DeployError(f"{path} is not a Parquet file: {error}") from error


def _arrow(path: Path) -> Iterator[Row]:
    arrow, ipc = _pyarrow("pyarrow"), _pyarrow("pyarrow.ipc")
    try:
        with arrow.memory_map(str(path)) as source:
            try:
                batches: Iterable[Any] = ipc.open_stream(source)
            except arrow.ArrowInvalid:
                opened = ipc.open_file(source)
                batches = (opened.get_batch(i) for i in range(opened.num_record_batches))
            yield from _numbered(batches)
    except arrow.ArrowException as error:
        raise DeployError(f"{path} is not an Arrow file: {error}") from error


def _numbered(batches: Iterable[Any]) -> Iterator[Row]:
    number = 0
    for batch in batches:
        for values in batch.to_pylist():
            number += 1
            yield Row(f"row {number}", values)


def _saved(folder: Path) -> Iterator[Row]:
    """Return the rows of a folder that ``Dataset.save_to_disk`` wrote. Raises ``DeployError`` if it has splits."""
    if (folder / _SPLITS).is_file():
        splits = sorted(one.name for one in folder.iterdir() if (one / _STATE).is_file())
        raise DeployError(f"{folder} has several splits: {', '.join(splits)}", hint=f"name one: {folder / splits[0]}")
    try:
        state = json.loads((folder / _STATE).read_text(encoding="utf-8"))
        files = [folder / Path(str(one["filename"])).name for one in state["_data_files"]]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise DeployError(
            f"{folder} is not a data set of the library `datasets`: it has no usable {_STATE}",
            hint="write it with Dataset.save_to_disk",
        ) from error
    return _with_errors(folder, _all(files))


def _all(files: Iterable[Path]) -> Iterator[Row]:
    number = 0
    for file in files:
        for row in _arrow(file):
            number += 1
            yield Row(f"row {number}", row.values)


def _pyarrow(module: str) -> Any:
    try:
        return importlib.import_module(module)
    except ImportError as error:  # not installed, or built for another version of numpy
        why = "is not installed" if isinstance(error, ModuleNotFoundError) else f"cannot be used: {error}"
        fits = "pyarrow" if int(np.__version__.partition(".")[0]) >= 2 else "'pyarrow<22'"
        raise DeployError(f"the Python package pyarrow {why}", hint=f"run `pip install {fits}`") from error


def sample(items: Iterable[T], most: int, *, seed: int = 0) -> list[T]:
    """Return a random sample of at most ``most`` items, in their order; the same items every time."""
    chance = random.Random(seed)  # noqa: S311 - a sample, no secret
    kept: list[tuple[int, T]] = []
    for number, item in enumerate(items):
        if len(kept) < most:
            kept.append((number, item))
        elif (place := chance.randrange(number + 1)) < most:
            kept[place] = (number, item)
    return [item for _, item in sorted(kept, key=lambda one: one[0])]


def texts_of(
    rows: Iterable[Row], path: Path, text_column: str, label_column: str | None, empty: list[str]
) -> Iterator[Text]:
    """Return the texts of rows. The places of rows without a text are appended to ``empty``.

    Raises ``DeployError`` for a row without the column, and for a value that is not a text.
    """
    for where, values in rows:
        for column in (text_column, *([label_column] if label_column else [])):
            if column not in values:
                names = [str(name) for name in values][:_SHOWN]
                other = next((one for one in ";\t|" if len(names) == 1 and one in names[0]), "")
                if other:
                    raise DeployError(
                        f"{path}: the columns are separated by {_SEPARATORS[other]}, not by commas",
                        hint="separate them by commas, or by tabs in a file whose name ends in .tsv",
                    )
                raise DeployError(
                    f"{path} {where}: there is no column {column}",
                    hint=f"its columns are {', '.join(names) or 'none'}; name one with "
                    + ("--text-column" if column == text_column else "--label-column"),
                )
        text = values[text_column]
        if text is None or (isinstance(text, str) and not text.strip()):
            empty.append(where)
            continue
        if not isinstance(text, str):
            raise DeployError(
                f"{path} {where}, column {text_column}: expected a text, but found {type(text).__name__}",
                hint="name the column of the texts with --text-column",
            )
        yield Text(where, text, "" if label_column is None else str(values[label_column]))

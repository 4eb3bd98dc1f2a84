"""Texts from a payload log: selected by endpoint and time, for every protocol; unreadable lines are skipped."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from deploy.admin.payload_texts import Read, Wanted, texts, texts_of
from deploy.tools.errors import DeployError


def record(time: str, request: Any, *, endpoint: str = "e", version: str = "1") -> str:
    """Return a line of the log."""
    told = {"time": time, "url": f"{endpoint}/{version}", "endpoint": endpoint, "version": version, "request": request}
    return json.dumps(told) + "\n"


def test_texts_are_those_of_the_endpoint_the_version_and_the_time(tmp_path: Path) -> None:
    """Files in the order of their names, the unfinished one too; a half line and strangers are left out and counted."""
    (tmp_path / "payloads-1.jsonl").write_text(
        record("2026-11-20T08:00:00Z", {"text": "one"})
        + record("2026-11-20T09:00:00Z", {"text": ["two", "three"]}, version="2")
        + record("2026-11-20T09:00:00Z", {"text": "not ours"}, endpoint="other")
        + "[]\n\n{}\n"
    )
    (tmp_path / "payloads-2.jsonl.part").write_text(
        record("2026-11-20T10:00:00Z", {"text": "four"}) + '{"time": "2026-11-2'
    )
    read = Read()
    assert ["one", "two", "three", "four"] == [*texts(tmp_path, Wanted("e"), read)]
    assert (3, 3, {"e", "other"}) == (read.records, read.unreadable, read.endpoints - {"None"})
    nine = datetime(2026, 11, 20, 9, tzinfo=UTC)
    assert ["one"] == [*texts(tmp_path, Wanted("e", end=nine), Read())]
    assert ["two", "three"] == [*texts(tmp_path, Wanted("e/2"), Read())]
    assert ["two", "three", "four"] == [*texts(tmp_path, Wanted("e", start=nine), Read())]
    assert ["four"] == [*texts(tmp_path / "payloads-2.jsonl.part", Wanted("e", "1", nine), Read())]


def test_events_that_a_receiver_has_written_are_read_too(tmp_path: Path) -> None:
    """The record is their data."""
    (tmp_path / "a.jsonl").write_text(
        json.dumps({"specversion": "1.0", "data": json.loads(record("2026-11-20T08:00:00", "plain"))})
    )
    assert ["plain"] == [*texts(tmp_path, Wanted("e"), Read())]


def test_no_log_is_told_with_what_makes_one(tmp_path: Path) -> None:
    """A missing or empty folder is an error that says how to turn the log on."""
    with pytest.raises(DeployError, match="there is no payload log"):
        [*texts(tmp_path / "gone", Wanted("e"), Read())]


@pytest.mark.parametrize(
    ("request_", "found"),
    [
        ({"inputs": "a", "parameters": {"top_k": "b"}}, ["a"]),
        ({"model": "m", "messages": [{"role": "user", "content": "a"}]}, ["a"]),
        ({"query": "a", "documents": ["b"]}, ["a"]),
        ({"review": {"title": "a", "body": "b"}, "stars": 3}, ["a", "b"]),
        ("a", ["a"]),
        ({"text": "  "}, []),
        ({"token_ids": [[1, 2]]}, []),
        ({"base64": "AAAA"}, []),
        (None, []),
    ],
)
def test_every_protocols_texts_are_found(request_: Any, found: list[str]) -> None:
    """Options and names are not texts; in an unknown body, all strings are."""
    assert found == [*texts_of(request_)]

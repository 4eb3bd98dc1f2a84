"""The decisions of the demo with the sentence encoder, with fakes of the tools."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from deploy.laptop.demo.minilm import ask, cosine, register, stage_times
from deploy.tools.http_client import Answer
from tests.sites import site

TASK = "a" * 32


class RecordingCli:
    """A fake of the stock CLI and of the upload: records calls, and returns ids."""

    env, log = {}, Path("log")  # type: ignore[var-annotated]

    def __init__(self) -> None:
        self.calls: list[str] = []

    async def upload(self, task_id: str, folder: Path, **_: Any) -> str:
        self.calls.append(f"upload {folder.name}")
        return "new"

    async def add_endpoint(self, task_id: str, endpoint: str, model_id: str, **_: Any) -> None:
        self.calls.append(f"add {endpoint} {model_id}")


CURRENT = {"task_id": TASK, "bundle": "minilm-1", "model_id": "old"}


@pytest.mark.parametrize(
    ("served", "remembered", "calls", "model"),
    [
        ("", {}, ["upload minilm-1", "add minilm new"], "new"),
        ("old", CURRENT, [], "old"),
        ("", CURRENT, ["add minilm old"], "old"),
        ("old", {**CURRENT, "bundle": "minilm-0"}, ["upload minilm-1", "add minilm new"], "new"),
        ("theirs", {**CURRENT, "bundle": "minilm-0"}, [], "theirs"),
        ("theirs", {}, [], "theirs"),
        ("", {**CURRENT, "task_id": "other"}, ["upload minilm-1", "add minilm new"], "new"),
    ],
    ids=["first time", "warm", "endpoint removed", "new export", "replaced by its user", "not ours", "another task"],
)
async def test_only_what_is_missing_is_registered(
    served: str, remembered: dict[str, str], calls: list[str], model: str
) -> None:
    """The demo registers what is missing, renews its own entries, and changes nothing else."""
    cli: Any = RecordingCli()
    entry = await register(
        cli, TASK, Path("/x/minilm-1"), endpoints={"minilm": served} if served else {}, remembered=remembered,
        say=lambda _: None, live=lambda _: None, upload=cli.upload,
    )  # fmt: skip
    assert cli.calls == calls
    assert entry == {"task_id": TASK, "bundle": "minilm-1", "model_id": model}


async def test_the_second_question_is_repeated_like_the_first() -> None:
    """It may reach a worker that does not have the model yet."""
    answers = [(503, {"error": "endpoint minilm is building: starting"}), (200, {"embeddings": [[1.0], [1.0], [-1.0]]})]
    shown: list[str] = []
    with site(lambda _: answers.pop(0)) as gateway:
        lines = await ask(gateway, Answer(200, {}, {"embedding": [1.0]}), live=shown.append)
    assert ["waiting for minilm: endpoint minilm is building: starting"] == shown
    assert any("-1.000" in line for line in lines)


def test_cosine_is_one_for_equal_directions_and_zero_for_right_angles() -> None:
    """The similarity shown is the cosine, not the dot product."""
    assert cosine([1, 0], [5, 0]) == pytest.approx(1)
    assert cosine([1, 0], [0, 2]) == pytest.approx(0)


def test_stage_times_are_shown_when_the_gateway_sends_them() -> None:
    """Headers become one readable phrase; without them nothing is shown."""
    headers = {"x-total-time": "9", "x-tokenization-time": "1", "x-inference-time": "7"}
    assert stage_times(headers) == "total 9 ms (tokenization 1, inference 7)"
    assert stage_times({}) == ""

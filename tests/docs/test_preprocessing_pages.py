"""docs/tasks.md and docs/preprocess-class.md say what the code does: their blocks run, their tables are complete."""

from __future__ import annotations

import asyncio
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from preprocessing import parameters
from preprocessing.heads import HEADS
from preprocessing.user_code import UserCode
from tests.docs.blocks import ROOT, blocks
from tests.unit.preprocessing.heads.test_heads import LABELS, head_of

TASKS = (ROOT / "docs/tasks.md").read_text(encoding="utf-8")


def shown(page: str, kind: str) -> list[str]:
    """The page's code blocks of one kind."""
    return [one.text for one in blocks() if (one.page, one.kind) == (f"docs/{page}.md", kind)]


@pytest.mark.parametrize("text", [one for one in shown("preprocess-class", "python") if "class Preprocess" in one])
def test_every_class_of_the_page_runs(text: str, tmp_path: Path) -> None:
    """Loaded as an endpoint's, with a request that it is for."""
    (tmp_path / "preprocess.py").write_text(text)

    async def send(endpoint: str, version: str | None, data: Any) -> str:
        return f"{endpoint} of {data['text']}"

    code: Any = UserCode.load(tmp_path / "preprocess.py", name="page", endpoint=None, send_request=send)
    body, state, seen = {"x0": 1.5, "values": [1, 2], "text": "hi", "age": 7}, {}, {}
    data = code.preprocess(body, state, seen.update)
    if code.is_async("process"):
        assert asyncio.run(code.process(body, state, seen.update))
    elif "postprocess" in code.stages:
        data = np.array(data, np.float32) if "unit" in state else data
        assert code.postprocess(data, state, seen.update)
    code.unload()


def test_trial_of_the_page_runs(tmp_path: Path) -> None:
    """A class can be tried without a server, as the page says."""
    (tmp_path / "preprocess.py").write_text("class Preprocess:\n    def process(self, data): return data + 1\n")
    names: dict[str, Any] = {}
    exec(next(block for block in shown("preprocess-class", "python") if "def answer" in block), names)
    assert 2 == names["answer"](tmp_path, 1)


def able(task: str) -> Any:
    """A task's head for a model that could do it."""
    return head_of(task=task, labels=LABELS.get(task, ("a", "b", "c")), prompts={"query": "q: "}, mask_id=4)


def section_of(block: str) -> str:
    """The task that a block of the page is shown for; the common ones are for classification."""
    before = TASKS.partition(block)[0]
    heading = re.findall(r"^## (.*)$", before, flags=re.MULTILINE)[-1]
    return heading if heading in HEADS else "text-classification"


@pytest.mark.parametrize("block", shown("tasks", "json"))
def test_every_request_of_the_page_is_accepted(block: str) -> None:
    """By the task it is shown for."""
    assert able(section_of(block)).parse(json.loads(block)).texts


@pytest.mark.parametrize("task", HEADS)
def test_every_task_and_parameter_has_its_place(task: str) -> None:
    """A section for the task, a row for each parameter."""
    section = TASKS.partition(f"\n## {task}\n")[2].partition("\n## ")[0]
    described = able(task).describe()
    assert [] == [name for name in described["parameters"] if f"| `{name}` |" not in section]


def test_every_option_is_in_the_table() -> None:
    """And the table has no other."""
    table = TASKS.partition("## Options of an endpoint")[2].partition("\n## ")[0]
    rows = [row.split("|")[1] for row in table.splitlines() if row.startswith("| `")]
    assert set(parameters.OPTIONS) == {name for row in rows for name in re.findall(r"`(\w+)`", row)}

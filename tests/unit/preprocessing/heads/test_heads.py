from __future__ import annotations

import pytest

from preprocessing.config import TaskConfig
from preprocessing.errors import UnsupportedTask
from preprocessing.heads import HEADS, head_for

LABELS = {"zero-shot-classification": ("entailment", "neutral", "contradiction"), "ranking": ("relevance",)}


@pytest.mark.parametrize("task", HEADS)
def test_every_task_builds_its_own_head(task: str) -> None:
    """Its description has an example that it accepts."""
    head = head_for(TaskConfig(task=task, labels=LABELS.get(task, ("a", "b")), pooling=("mean",), mask_id=1))
    assert task == head.task
    assert head.parse(head.describe()["example"]).texts


def test_unknown_task_is_refused_with_the_known_ones() -> None:
    """For a task that config.py can name but no head does."""
    with pytest.raises(UnsupportedTask) as caught:
        head_for(TaskConfig(task="table-question-answering"))
    assert "supported are feature-extraction, fill-mask" in str(caught.value)

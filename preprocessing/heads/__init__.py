"""The only list of tasks: a name and what builds its head. A new task is a file in this folder and a line here."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from preprocessing.config import TaskConfig
from preprocessing.errors import UnsupportedTask
from preprocessing.heads.base import Head
from preprocessing.heads.embedding import SentenceEmbedding
from preprocessing.heads.sequence_classification import SequenceClassification

HEADS: Final[Mapping[str, Callable[[TaskConfig], Head]]] = {
    SequenceClassification.task: SequenceClassification,
    SentenceEmbedding.task: SentenceEmbedding,
}


def head_for(config: TaskConfig) -> Head:
    """The head of the config's task; raises UnsupportedTask, which names the tasks there are."""
    build = HEADS.get(config.task)
    if build is None:
        raise UnsupportedTask(
            f"The task {config.task} is not supported", hint=f"supported are {', '.join(sorted(HEADS))}"
        )
    return build(config)

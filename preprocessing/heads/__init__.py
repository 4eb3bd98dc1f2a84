"""The heads of all tasks, one file each, and their only list. A new task is a file in this folder and a line here.

A head defines a task's request and turns the model's outputs into an answer. Called by ``processor``, for the gateway
and for ``deploy/bundles``. It must never handle bytes, HTTP or Triton, nor keep state between requests.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Final

from preprocessing.config import TaskConfig
from preprocessing.errors import UnsupportedTask
from preprocessing.heads.base import Head
from preprocessing.heads.embedding import SentenceEmbedding
from preprocessing.heads.features import FeatureExtraction
from preprocessing.heads.fill_mask import FillMask
from preprocessing.heads.generation import TextGeneration
from preprocessing.heads.question_answering import QuestionAnswering
from preprocessing.heads.ranking import Ranking
from preprocessing.heads.sequence_classification import SequenceClassification
from preprocessing.heads.token_classification import TokenClassification
from preprocessing.heads.zero_shot import ZeroShot

if TYPE_CHECKING:
    from preprocessing.tokenizer import TextTokenizer

HEADS: Final[Mapping[str, Callable[[TaskConfig, TextTokenizer], Head]]] = {
    SequenceClassification.task: lambda config, _: SequenceClassification(config),
    SentenceEmbedding.task: SentenceEmbedding,
    FeatureExtraction.task: lambda config, _: FeatureExtraction(config),
    Ranking.task: lambda config, _: Ranking(config),
    ZeroShot.task: lambda config, _: ZeroShot(config),
    FillMask.task: FillMask,
    TokenClassification.task: TokenClassification,
    QuestionAnswering.task: lambda config, _: QuestionAnswering(config),
    TextGeneration.task: lambda config, _: TextGeneration(config),
}


def head_for(config: TaskConfig, vocabulary: TextTokenizer) -> Head:
    """Return the head of the config's task. Raises UnsupportedTask with the names of all tasks."""
    build = HEADS.get(config.task)
    if build is None:
        raise UnsupportedTask(
            f"The task {config.task} is not supported", hint=f"supported are {', '.join(sorted(HEADS))}"
        )
    return build(config, vocabulary)

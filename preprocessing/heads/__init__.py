"""The heads of all tasks, one file each, and their only list. A new task is a file in this folder and a line here.

A head defines a task's request and turns the model's outputs into an answer. Called by ``processor``, for the gateway
and for ``deploy/bundles``. It must never handle bytes, HTTP or Triton, nor keep state between requests.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final

from preprocessing.config import TaskConfig
from preprocessing.errors import UnsupportedTask
from preprocessing.heads.base import Head, Vocabulary
from preprocessing.heads.embedding import SentenceEmbedding
from preprocessing.heads.features import FeatureExtraction
from preprocessing.heads.fill_mask import FillMask
from preprocessing.heads.generation import TextGeneration
from preprocessing.heads.question_answering import QuestionAnswering
from preprocessing.heads.ranking import Ranking
from preprocessing.heads.sequence_classification import SequenceClassification
from preprocessing.heads.token_classification import TokenClassification
from preprocessing.heads.zero_shot import ZeroShot

HEADS: Final[Mapping[str, Callable[[TaskConfig, Vocabulary], Head]]] = {
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


class _NoVocabulary:
    """Stands in for a tokenizer, so that heads can be asked about themselves; decoding gives empty strings."""

    is_word_aware = False

    def token_of(self, token_id: int) -> str:
        return f"[{token_id}]"

    def id_of(self, token: str) -> int | None:
        del token
        return None

    def first_ids(self, texts: Sequence[str]) -> list[int | None]:
        return [None] * len(texts)

    def prompt_size(self, prompt: str) -> int:
        return len(prompt.split())

    def join(self, tokens: Sequence[str]) -> str:
        return " ".join(tokens)

    def decode_batch(self, rows: Sequence[Sequence[int]], *, skip_special_tokens: bool = False) -> list[str]:
        del skip_special_tokens
        return [" ".join(map(str, ids)) for ids in rows]


def head_for(config: TaskConfig, vocabulary: Vocabulary | None = None) -> Head:
    """Return the head of the config's task. Raises UnsupportedTask with the names of all tasks."""
    build = HEADS.get(config.task)
    if build is None:
        raise UnsupportedTask(
            f"The task {config.task} is not supported", hint=f"supported are {', '.join(sorted(HEADS))}"
        )
    return build(config, vocabulary or _NoVocabulary())

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from preprocessing.config import TaskConfig
from preprocessing.errors import InvalidOutput
from preprocessing.heads.sequence_classification import SequenceClassification
from preprocessing.types import Encoded, Prepared

LABELS = ("NO", "MAYBE", "YES")


def head_of(**config: Any) -> SequenceClassification:
    """Return the head of a model with three labels."""
    return SequenceClassification(TaskConfig(task="t", labels=LABELS, activation="softmax", **config))


@pytest.mark.parametrize(
    ("logits", "top_k", "endpoint", "labels"),
    [
        ([0, 1, 2], None, 1, ["YES"]),
        ([0, 1, 2], 2, 1, ["YES", "MAYBE"]),
        ([0, 1, 2], 99, None, ["YES", "MAYBE", "NO"]),
        ([1, 1, 1], None, None, ["NO", "MAYBE", "YES"]),
    ],
)
def test_the_best_labels_are_listed(logits: Any, top_k: int | None, endpoint: int | None, labels: list[str]) -> None:
    """As many as the request says, else the endpoint; equal scores in the model's order, the same in every call.

    At the top level for one text, in its order for a list, also for one of one item; cuts only where there are.
    """
    head = head_of(top_k=endpoint)
    for is_cut, text in ((False, "a"), (True, "a"), (False, ["a"]), (True, ["a"])):
        request = head.parse({"text": text, "parameters": {"top_k": top_k}})
        prepared = Prepared([Encoded(np.arange(4), truncated=is_cut)], request)
        answer: Any = head.render(head.decode({"logits": np.array([logits], np.float32)}, prepared), prepared)
        if isinstance(text, list):
            answer = {**answer.pop("results")[0], **{name: values[0] for name, values in answer.items()}}
        assert (labels, 4, is_cut) == (list(answer["scores"]), answer["tokens"], answer.get("truncated", False))


@pytest.mark.parametrize(
    "logits",
    [
        *(np.zeros(shape) for shape in ((1, 2), (2, 3), (3,), (1, 3, 1), (1, 0))),
        *(np.array([[0, value, 1]]) for value in (np.nan, np.inf, -np.inf)),
    ],
)
def test_logits_that_are_no_scores_are_refused(logits: Any) -> None:
    """Of another shape, for a model with other labels than its config; JSON has no NaN."""
    head = head_of()
    prepared = Prepared([Encoded(np.arange(4))], head.parse({"text": "a"}))
    with pytest.raises(InvalidOutput):
        head.decode({"logits": logits.astype(np.float32)}, prepared)

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from preprocessing.config import TaskConfig
from preprocessing.errors import InvalidOutput
from preprocessing.heads.sequence_classification import SequenceClassification
from preprocessing.types import Encoded, Prepared

LABELS = ("NO", "MAYBE", "YES")
SCORES = {"YES": 0.8437947, "NO": 0.1141952, "MAYBE": 0.0420101}


def answer(logits: Any, body: dict[str, Any], *, truncated: bool = False, **config: Any) -> Any:
    """Return the answer to a body, given the logits of its rows."""
    head = SequenceClassification(TaskConfig(task="t", **{"labels": LABELS, "activation": "softmax", **config}))
    prepared = Prepared([Encoded(np.arange(4), truncated=truncated) for _ in logits], head.parse(body))
    return head.render(head.decode({"logits": np.array(logits, np.float32)}, prepared), prepared)


def test_scores_are_listed_from_best_to_worst() -> None:
    """At the top level for one text, in its order for a list, also for one of one item; cuts only where there are."""
    one = answer([[0.0, -1.0, 2.0]], {"text": "a"})
    assert ("YES", one["scores"]["YES"], 4) == (one["label"], one["score"], one["tokens"])
    assert list(SCORES) == list(one["scores"])
    assert pytest.approx(SCORES, abs=1e-6) == one["scores"]
    several = answer([[0, 0, 1], [1, 0, 0]], {"text": ["a", "b"]})
    assert (["YES", "NO"], [4, 4]) == ([item["label"] for item in several["results"]], several["tokens"])
    assert 1 == len(answer([[0, 0, 1]], {"text": ["a"]})["results"])
    assert "truncated" not in one
    assert answer([[0, 1, 2]], {"text": "a"}, truncated=True)["truncated"] is True
    assert [True] == answer([[0, 1, 2]], {"text": ["a"]}, truncated=True)["truncated"]


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
    """As many as the request says, else the endpoint; equal scores in the model's order, the same in every call."""
    body = {"text": "a", "parameters": {"top_k": top_k}}
    assert labels == list(answer([logits], body, top_k=endpoint)["scores"])


@pytest.mark.parametrize(
    "logits",
    [
        *(np.zeros(shape) for shape in ((1, 2), (2, 3), (3,), (1, 3, 1), (1, 0))),
        *(np.array([[0, value, 1]]) for value in (np.nan, np.inf, -np.inf)),
    ],
)
def test_logits_that_are_no_scores_are_refused(logits: Any) -> None:
    """Of another shape, for a model with other labels than its config; JSON has no NaN."""
    head = SequenceClassification(TaskConfig(task="t", labels=LABELS, activation="softmax"))
    prepared = Prepared([Encoded(np.arange(4))], head.parse({"text": "a"}))
    with pytest.raises(InvalidOutput):
        head.decode({"logits": logits.astype(np.float32)}, prepared)

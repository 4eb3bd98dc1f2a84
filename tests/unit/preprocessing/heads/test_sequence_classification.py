from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from preprocessing.config import TaskConfig
from preprocessing.errors import InvalidOutput
from preprocessing.heads.sequence_classification import SequenceClassification
from preprocessing.types import Encoded, Prepared

CONFIG = TaskConfig(task="text-classification", labels=("NO", "MAYBE", "YES"), activation="softmax")


def answer(logits: Sequence[Sequence[float]], body: dict[str, Any], config: TaskConfig = CONFIG, **row: Any) -> Any:
    """Return the answer to a body, given the logits of its rows."""
    head = SequenceClassification(config)
    prepared = Prepared([Encoded(np.arange(4), **row) for _ in logits], head.parse(body))
    return head.render(head.decode({"logits": np.array(logits, np.float32)}, prepared), prepared)


def config(**values: Any) -> TaskConfig:
    """A classifier's configuration."""
    return TaskConfig(task="text-classification", **values)


def test_single_text_answers_at_the_top_level() -> None:
    """The best label, its score, and all scores from best to worst."""
    result = answer([[0.0, -1.0, 2.0]], {"text": "a"})
    assert ["label", "score", "scores", "tokens"] == list(result)
    assert ("YES", result["scores"]["YES"], 4) == (result["label"], result["score"], result["tokens"])
    assert ["YES", "NO", "MAYBE"] == list(result["scores"])
    np.testing.assert_allclose(list(result["scores"].values()), [0.8437947, 0.1141952, 0.0420101], atol=1e-6)


def test_list_answers_a_list_of_the_same_order() -> None:
    """Also a list of one."""
    result = answer([[0, 0, 1], [1, 0, 0]], {"text": ["a", "b"]})
    assert ["YES", "NO"] == [item["label"] for item in result["results"]]
    assert [4, 4] == result["tokens"]
    assert 1 == len(answer([[0, 0, 1]], {"text": ["a"]})["results"])


def test_top_k_limits_the_scores() -> None:
    """The request overrides the endpoint. More than there are means all."""
    endpoint = config(labels=CONFIG.labels, activation="softmax", top_k=1)
    assert ["YES"] == list(answer([[0, 1, 2]], {"text": "a"}, endpoint)["scores"])
    assert ["YES", "MAYBE"] == list(answer([[0, 1, 2]], {"text": "a", "parameters": {"top_k": 2}}, endpoint)["scores"])
    assert 3 == len(answer([[0, 1, 2]], {"text": "a", "parameters": {"top_k": 99}})["scores"])


def test_equal_scores_keep_the_models_order() -> None:
    """Ties are answered the same in every call."""
    assert ["NO", "MAYBE", "YES"] == list(answer([[1, 1, 1]], {"text": "a"})["scores"])


def test_truncation_is_reported_only_if_it_happened() -> None:
    """As true for one text, as a list for a list."""
    assert "truncated" not in answer([[0, 1, 2]], {"text": "a"})
    assert answer([[0, 1, 2]], {"text": "a"}, truncated=True)["truncated"] is True
    assert [True] == answer([[0, 1, 2]], {"text": ["a"]}, truncated=True)["truncated"]


@pytest.mark.parametrize("shape", [(1, 2), (2, 3), (3,), (1, 3, 1), (1, 0)])
def test_logits_of_another_shape_are_refused(shape: tuple[int, ...]) -> None:
    """A model with other labels than its config would give wrong labels."""
    head = SequenceClassification(CONFIG)
    prepared = Prepared([Encoded(np.arange(4))], head.parse({"text": "a"}))
    with pytest.raises(InvalidOutput, match="expected"):
        head.decode({"logits": np.zeros(shape, np.float32)}, prepared)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_logits_that_are_not_finite_are_refused(value: float) -> None:
    """JSON has no NaN, and it is not a score."""
    with pytest.raises(InvalidOutput, match="not finite"):
        answer([[0, value, 1]], {"text": "a"})

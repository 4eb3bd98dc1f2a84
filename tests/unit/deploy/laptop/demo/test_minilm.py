"""The decisions of the demo with the sentence encoder, with fakes of the tools."""

from __future__ import annotations

import pytest

from deploy.laptop.demo.minilm import ask, cosine
from tests.sites import site


async def test_each_question_is_repeated_until_it_is_answered() -> None:
    """It may reach a worker that does not have the model yet."""
    waits = (503, {"error": "endpoint minilm is building: starting"})
    answers = [waits, (200, {"embedding": [1.0]}), waits, (200, {"embeddings": [[1.0], [1.0], [-1.0]]})]
    shown: list[str] = []
    with site(lambda _: answers.pop(0)) as gateway:
        lines = await ask(gateway, live=lambda text, **_: shown.append(text))
    assert ["waiting for minilm: endpoint minilm is building: starting"] * 2 == shown
    assert any("-1.000" in line for line in lines)


def test_cosine_is_one_for_equal_directions_and_zero_for_right_angles() -> None:
    """The similarity shown is the cosine, not the dot product."""
    assert cosine([1, 0], [5, 0]) == pytest.approx(1)
    assert cosine([1, 0], [0, 2]) == pytest.approx(0)

"""Prompts and caches of every length, and every token, for graphs that generate text."""

from __future__ import annotations

import numpy as np
import pytest

from deploy.bundles.generation import probes
from deploy.tools.errors import ExportFailed

VOCABULARY = 300
TABLE = np.random.default_rng(0).normal(size=(VOCABULARY, 8)).astype(np.float32)


def read(ids):
    """A model whose logits behind a token are the sum of what is in the table for all tokens so far."""
    return np.cumsum(TABLE[list(ids)], axis=0)


class Engine:
    """The same, with what a test does to the logits of a prompt and of a token read with the cache."""

    def __init__(self, prompt=lambda logits, ids: logits, cached=lambda logits, past: logits):
        self.prompt, self.cached = prompt, cached

    def whole(self, ids):
        return self.prompt(read(ids)[-1], ids)

    def follow(self, prompt, tokens):
        steps = read((*prompt, *tokens))[:-1]
        return np.stack([self.cached(step, past) for past, step in enumerate(steps)])


@pytest.fixture(scope="module")
def probed():
    """Of a text of five tokens that is read again and again, up to 200 of them."""
    return probes.make(read, [5, 9, 2, 7, 11], longest=200, vocabulary=VOCABULARY, weights=1000)


def test_the_right_logits_pass(probed):
    """In fp32 as in a reduced precision."""
    for difference in (1e-4, float("inf")):
        assert ([], []) == probes.judge(probed, Engine(), difference)


@pytest.mark.parametrize("difference", [1e-4, float("inf")])
@pytest.mark.parametrize("length", [1, 60, 77, 128, 144, 200])
def test_a_prompt_of_one_length_that_is_wrong_is_a_fault(probed, length, difference):
    """Every length up to 128, every multiple of 16 and the longest."""
    engine = Engine(prompt=lambda logits, ids: -logits if len(ids) == length else logits)
    assert "prompts of every length: the logits differ from PyTorch's" in probes.judge(probed, engine, difference)[0][0]


@pytest.mark.parametrize("difference", [1e-4, float("inf")])
@pytest.mark.parametrize("past", [1, 77, 198])
def test_a_step_behind_one_length_that_is_wrong_is_a_fault(probed, past, difference):
    """With every number of tokens in the cache."""
    engine = Engine(cached=lambda logits, before: logits * np.nan if before == past else logits)
    (fault,) = probes.judge(probed, engine, difference)[0]
    assert "1 of 198 tokens read with the cache" in fault


@pytest.mark.parametrize("difference", [1e-4, float("inf")])
@pytest.mark.parametrize("token", [0, 150, 299])
def test_a_graph_that_is_wrong_when_one_token_is_present_is_a_fault(probed, token, difference):
    """Also one that no prompt has."""
    engine = Engine(prompt=lambda logits, ids: -logits if token in ids else logits)
    (fault,) = probes.judge(probed, engine, difference)[0]
    assert "1 of 3 prompts that together contain the whole vocabulary" in fault


def test_a_little_is_beyond_the_tolerance_of_fp32_alone(probed):
    """A person may accept it."""
    engine = Engine(prompt=lambda logits, ids: logits * 1.01)
    faults, excesses = probes.judge(probed, engine, 1e-4)
    assert not faults
    assert "by 0.01 of their size" in excesses[0]
    assert ([], []) == probes.judge(probed, engine, float("inf"))


def test_of_the_vocabulary_of_a_large_model_every_nth_token_is_tried():
    """As many as there is time for."""
    made = probes.make(read, [5], longest=64, vocabulary=VOCABULARY, weights=int(4e12 // 100))
    assert list(range(0, VOCABULARY, 3)) == [token for row, _ in made.vocabulary for token in row]
    assert max(len(row) for row, _ in made.vocabulary) <= 64


def test_logits_of_another_vocabulary_are_told(probed):
    """Nothing is computed from them."""
    with pytest.raises(ExportFailed, match="logits cover 7 tokens instead of 8"):
        probes.judge(probed, Engine(prompt=lambda logits, ids: logits[:7]), 1e-4)

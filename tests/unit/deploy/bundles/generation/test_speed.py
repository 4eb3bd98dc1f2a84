"""The pace of generated text: what is kept, compared and shown."""

from __future__ import annotations

import pytest

from deploy.bundles.generation.report import cells, speed_rows
from deploy.bundles.generation.speed import Pace, as_rows, measure, score
from deploy.bundles.speed import ORIGINAL

ONE = Pace(1, 16, {ORIGINAL: 20.0, "a": 10.0, "b": 20.0}, {ORIGINAL: 8.0, "a": 1.0, "b": 2.0})
TWO = Pace(2, 16, {ORIGINAL: 20.0, "a": 20.0, "b": 5.0}, {ORIGINAL: 8.0, "a": 8.0, "b": 2.0})


def test_the_best_round_counts():
    """Others can only add to a time; a number of threads is looked at once."""
    asked = []

    def pacer(first, each):
        times = iter([(0, 0), (first + 5, each), (first, each + 5), (first + 1, each + 1)])
        return lambda prompt, tokens: next(times)

    def open_engines(threads):
        asked.append(threads)
        return {ORIGINAL: pacer(20.0, 8.0), "a": pacer(10.0, 2.0)}

    said = []
    (pace,) = measure([[1] * 16], (1, 1), open_engines, said.append)
    assert Pace(1, 16, {ORIGINAL: 20.0, "a": 10.0}, {ORIGINAL: 8.0, "a": 2.0}) == pace
    assert [1] == asked
    assert "speed: prompt of 16 tokens, 1 thread(s): PyTorch 125.0 tokens/s, a ×4.0" == said[0]


def test_throughput_looks_at_one_thread_and_latency_at_all():
    """The geometric mean over first tokens and tokens after them."""
    assert score([ONE, TWO], "a", "throughput") == pytest.approx(4.0)
    for load, name in (("throughput", "a"), ("latency", "b")):
        assert name == max("ab", key=lambda name, load=load: score([ONE, TWO], name, load))


def test_tables_show_the_first_token_and_those_after_it():
    """Milliseconds for the one, tokens per second for the others, each as a ratio to generate."""
    header, first, each = speed_rows([ONE])
    assert ["threads", "prompt", "", "PyTorch generate", "a", "b"] == header
    assert ["1", "16", "first token", "20.0 ms", "×2.00 (10.0 ms)", "×1.00 (20.0 ms)"] == first
    assert ["1", "16", "each after it", "125.0 tokens/s", "×8.00 (1000.0 tokens/s)"] == each[:5]
    assert [("1 thr · 16 · first", {"a": 2.0, "b": 1.0}), ("1 thr · 16 · each", {"a": 8.0, "b": 4.0})] == cells([ONE])
    assert ["first", "each after it"] == [row["token"] for row in as_rows([ONE])]

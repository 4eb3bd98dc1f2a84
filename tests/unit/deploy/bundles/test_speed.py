"""The speed table with a clock of its own: what is measured, kept, compared; and what the stock tool is told of it."""

from __future__ import annotations

import numpy as np
import pytest

from deploy.bundles.serving import Tuned, command_line, tensors
from deploy.bundles.speed import ORIGINAL, Cell, Timing, best_batch, grid, measure, of_size, score
from deploy.tools.clearml_serving import Tensor, model_add


def test_a_cell_is_milliseconds_per_call_and_the_ratio_is_to_pytorch():
    """Twice as long per call is half as fast. Time passes only where a call takes it."""
    now = [0.0]

    def engine(seconds):
        return lambda cell: lambda: now.append(now.pop() + seconds)

    (found,) = measure([Cell(1, 8)], {ORIGINAL: engine(0.1), "a": engine(0.05)}, str, clock=lambda: now[0])
    assert (100.0, 50.0, 2.0) == tuple(round(x, 6) for x in (found.ms[ORIGINAL], found.ms["a"], found.ratio("a")))


def test_the_score_is_the_geometric_mean_and_the_batch_the_smallest_that_is_nearly_the_fastest_per_row():
    """What was not measured has none. For a, eight rows in 8 ms are twice as fast per row as one in 2 ms."""
    one, eight = {ORIGINAL: 10.0, "a": 2.0, "b": 5.0}, {ORIGINAL: 80.0, "a": 8.0, "b": 40.0}
    timings = [Timing(Cell(1, 64), one), Timing(Cell(8, 64), eight)]
    assert [7.071, 2.0, 0.0] == [round(score(timings, name), 3) for name in ("a", "b", "c")]
    assert (8, 1) == (best_batch(timings, "a"), best_batch(timings, "b"))


def test_the_grid_ends_at_the_models_longest_input():
    """And leaves out cells that only PyTorch is slow in."""
    cells = grid(128, "throughput")
    assert {16, 64, 128} == {c.length for c in cells}
    assert max(c.batch * c.length for c in cells) <= 2048
    assert [8] == sorted({c.length for c in grid(8, "throughput")})
    assert {1} == {c.batch for c in grid(128, "latency")}
    assert [(1, 16), (1, 128)] == [(c.batch, c.length) for c in grid(128, "throughput", is_quick=True)]


def test_the_line_is_the_stock_clis_own():
    """With the shapes it wants, and what was tuned as --aux-config."""
    inputs, outputs = [Tensor("input_ids", "int64", (-1, -1))], [Tensor("logits", "float32", (-1, 3))]
    line = command_line(model_add("faq/2", "m" * 32, inputs, outputs, Tuned(2, 1, 8).pairs()))
    assert line.startswith("clearml-serving model add --engine triton --endpoint faq --version 2 --model-id mmm")
    assert "--input-size '[-1, -1]'" in line
    assert line.endswith(
        "--aux-config max_batch_size=8 instance_group.0.count=2 instance_group.0.kind=KIND_CPU parameters.threads=1"
    )


def test_a_text_is_brought_to_a_cells_size_with_its_ends_where_they_were():
    """Every row begins and ends as the text does: a model that reads its end finds one, and in every row the same."""
    feeds = {"input_ids": np.array([[1, 7, 8, 2]]), "attention_mask": np.array([[1, 1, 1, 1]])}
    made = of_size(feeds, Cell(2, 7))
    assert [[1, 7, 8, 7, 8, 7, 2]] * 2 == made["input_ids"].tolist()
    assert (2, 7) == made["attention_mask"].shape
    assert [[1, 2]] == of_size(feeds, Cell(1, 2))["input_ids"].tolist()
    assert [[1]] == of_size(feeds, Cell(1, 1))["input_ids"].tolist()
    assert [[5, 5, 5]] == of_size({"input_ids": np.array([[5]])}, Cell(1, 3))["input_ids"].tolist()


@pytest.mark.parametrize(
    ("shapes", "expected"),
    [
        ([(1, 21), (1, 5)], (-1, -1)),  # question answering: a number per token
        ([(1, 2), (1, 2)], (-1, 2)),  # labels
        ([(1, 21), (1, 21)], (-1, 21)),  # as many labels as the first text has tokens
        ([(1, 21, 3), (1, 5, 3)], (-1, -1, 3)),
        ([(1, 21, 3)], (-1, -1, 3)),
        ([(1, 21, 21), (1, 5, 21)], (-1, -1, 21)),  # as many values per token as tokens
    ],
)
def test_sizes_that_follow_the_length_of_a_text_are_dynamic(shapes, expected):
    """A size that is the same for all texts is the model's own."""
    feeds = {"input_ids": np.zeros((1, 21), np.int64)}
    inputs, outputs = tensors(feeds, [{"logits": np.zeros(shape, np.float32)} for shape in shapes])
    assert [("input_ids", "int64", (-1, -1))] == [(one.name, one.type, tuple(one.shape)) for one in inputs]
    assert [("logits", "float32", expected)] == [(one.name, one.type, tuple(one.shape)) for one in outputs]

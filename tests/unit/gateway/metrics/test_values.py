"""The values of a variable: where they are found, and in which order."""

from __future__ import annotations

import numpy as np
import pytest

from gateway.metrics import values


@pytest.mark.parametrize(
    ("name", "body", "answer", "reported", "expected"),
    [
        ("x", {"x": 1}, {}, None, [1]),
        ("x", {}, {"x": 2}, None, [2]),
        ("x", {}, {}, {"x": 3}, [3]),
        ("x", {"x": 1}, {"x": 2}, {"x": 3}, [2]),
        ("x", {"x": None}, {}, {"x": 3}, [3]),
        ("a.b", {"a": {"b": 4}}, {}, None, [4]),
        ("a.b", {"a.b": 5, "a": {"b": 4}}, {}, None, [5]),
        ("a.b", {}, {"a": [{"b": 1}, {"b": 2}, {}]}, None, [1, 2]),
        ("a.1", {}, {"a": [7, 8, 9]}, None, [8]),
        ("a.9", {}, {"a": [7, 8, 9]}, None, []),
        ("a", {}, {"a": [7, [8, 9]]}, None, [7, 8, 9]),
        ("a.0.b", {}, {"a": [{"b": 6}]}, None, [6]),
        ("x", {}, [{"x": 1}, {"x": 2}], None, [1, 2]),
        ("v", {}, {"v": np.array([[1.0, 2.0]])}, None, [1.0, 2.0]),
        ("v.1", {}, {"v": np.array([1.0, 2.0])}, None, [2.0]),
        ("x", b"raw", "text", None, []),
        ("x", None, None, None, []),
    ],
)
def test_values_are_found_in_answer_request_and_reports(
    name: str, body: object, answer: object, reported: dict[str, object] | None, expected: list[object]
) -> None:
    """In clearml-serving's order; by key, by nested path, in every element of a list."""
    assert expected == values.find((answer, body, reported), name, values.split(name))

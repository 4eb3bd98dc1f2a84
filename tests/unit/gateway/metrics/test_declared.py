"""Declared variables, and names of labels that mean others."""

from __future__ import annotations

import numpy as np
import pytest

from gateway.metrics.declared import check, declared_for, find
from gateway.metrics.mirrored import renamed, with_names
from gateway.spec import MetricSpec, MetricVariable

V = MetricVariable


def test_the_most_specific_declaration_applies() -> None:
    """The url's own, or else the longest wildcard; `E/*` covers every version of E and E itself."""
    specs = {
        key: MetricSpec(key, None, (V(name, "value"),))
        for key, name in (("e/1", "own"), ("e/*", "all"), ("*", "any"), ("e/2*", "two"))
    }

    def names(url: str) -> list[str]:
        return [variable.name for variable in declared_for(url, specs, 1.0).variables]

    assert ["own", "two", "all", "all", "any"] == [names(u)[0] for u in ("e/1", "e/20", "e/3", "e", "other/1")]
    del specs["*"]
    assert [] == names("eagle/1")


@pytest.mark.parametrize(
    "variable",
    [
        V("x", "histogram"), V("x", "scalar"), V("x", "scalar", ("low",)), V("x", "scalar", (*map(float, range(101)),)),
        V("x", "enum"), V("x", "enum", ("x" * 101,)), V("x" * 101, "value"), V("", "value"),
    ],
)  # fmt: skip
def test_an_unusable_declaration_is_a_fault_of_its_own(variable: MetricVariable) -> None:
    """The other variables of the endpoint are used: fifty of them, more than a board can show are a mistake."""
    usable, faults = check(MetricSpec("e", None, (variable, V("fine", "value"))))
    assert (["fine"], 1) == ([v.name for v in usable], len(faults))
    usable, faults = check(MetricSpec("e", None, tuple(V(f"x{i}", "value") for i in range(60))))
    assert (50, 1) == (len(usable), len(faults))


@pytest.mark.parametrize(
    ("name", "body", "answer", "reported", "expected"),
    [
        ("x", {}, {}, {"x": 3}, [3]),
        ("x", {"x": 1}, {"x": 2}, {"x": 3}, [2]),
        ("x", {"x": None}, {}, {"x": 3}, [3]),
        ("a.b", {"a": {"b": 4}}, {}, None, [4]),
        ("a.b", {}, {"a": [{"b": 1}, {"b": 2}, {}]}, None, [1, 2]),
        ("a", {}, {"a": [7, [8, 9]]}, None, [7, 8, 9]),
        ("x", {}, [{"x": 1}, {"x": 2}], None, [1, 2]),
        ("v", {}, {"v": np.array([[1.0, 2.0]])}, None, [1.0, 2.0]),
        ("v", {}, {"v": [0] * 1000}, None, [0] * 256),
        ("x", b"raw", "text", None, []),
    ],
)
def test_values_are_found_in_answer_request_and_reports(
    name: str, body: object, answer: object, reported: dict[str, object] | None, expected: list[object]
) -> None:
    """In clearml-serving's order; by key, by nested path, in every element of a list."""
    assert expected == find((answer, body, reported), name.split("."))


@pytest.mark.parametrize(
    ("stable", "canary", "names"),
    [
        (["A", "B"], ["B", "A"], {}),
        (["LABEL_0", "LABEL_1"], ["no", "yes"], {"no": "LABEL_0", "yes": "LABEL_1"}),
        (["A", "B", "C"], ["A", "X", "C"], {"X": "B"}),
        (["A", "B"], ["A", "B", "C"], {}),
        (["O", "B-PER"], ["O", "B-WHO"], {"B-WHO": "B-PER", "WHO": "PER"}),
    ],
)  # fmt: skip
def test_a_new_name_means_the_label_at_its_position(
    stable: list[str], canary: list[str], names: dict[str, str]
) -> None:
    """A name that both have means itself; so a new order alone, and a new label at the end, change nothing."""
    assert names == renamed(stable, canary)


def test_only_labels_of_an_answer_are_renamed() -> None:
    """Words of the text may look like labels."""
    names = {"no": "BAD", "WHO": "PER"}
    answer = {"label": "no", "scores": {"no": 1.0}, "tokens": 3, "entities": [{"entity_group": "WHO", "word": "no"}]}
    meant = {"label": "BAD", "scores": {"BAD": 1.0}, "tokens": 3, "entities": [{"entity_group": "PER", "word": "no"}]}
    assert {"results": [meant]} == with_names({"results": [answer]}, names)

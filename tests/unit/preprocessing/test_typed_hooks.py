"""Typed classes: bodies and answers are held to the pydantic models that a class declares, and those are its schema."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from preprocessing.errors import UserCodeFailed, UserCodeRefused
from preprocessing.user_code import UserCode

ANNOTATED = """
from __future__ import annotations
from pydantic import BaseModel, Field

class Passenger(BaseModel):
    age: int = Field(ge=0, lt=150)
    fare: float = 7.5

class Survival(BaseModel):
    probability: float = Field(ge=0, le=1)

class Preprocess:
    def preprocess(self, body: Passenger, state, collect_custom_statistics_fn=None):
        return [body.age, body.fare]
    def postprocess(self, data, state, collect_custom_statistics_fn=None) -> Survival:
        return {"probability": data}
"""

NESTED = """
from pydantic import BaseModel

class Preprocess:
    class Request(BaseModel):
        x: int
        y: int = 1
    class Response(BaseModel):
        z: int
    async def process(self, data, state, collect_custom_statistics_fn=None):
        return {"z": data["x"] + data["y"]}
"""


@pytest.fixture
def load(tmp_path: Path) -> Any:
    """Load a class from its source."""

    def make(source: str) -> UserCode:
        path = tmp_path / "preprocess.py"
        path.write_text(source)
        return UserCode.load(path, name="t", endpoint=None, send_request=lambda *_: None)

    return make


def test_annotated_body_arrives_as_an_object_with_its_defaults(load: Any) -> None:
    """Convertible values are converted, and missing fields get their defaults."""
    assert [30, 7.5] == load(ANNOTATED).preprocess({"age": "30"}, {})


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ({}, "age: Field required"),
        ({"age": 150}, "age: Input should be less than 150"),
        ({"age": "many", "fare": []}, "fare: Input should be a valid number"),
        ([1], "body: Input should be a valid dictionary"),
        (b"raw", "body: Input should be a valid dictionary"),
    ],
)
def test_body_that_does_not_fit_is_refused_field_by_field_without_its_values(load: Any, body: Any, said: str) -> None:
    """With 422 and all wrong fields, without pydantic's traceback."""
    with pytest.raises(UserCodeRefused) as refused:
        load(ANNOTATED).preprocess(body, {})
    assert said in refused.value.message
    assert "many" not in refused.value.message
    assert "pydantic" not in str(refused.value)


def test_an_answer_that_does_not_match_is_the_hooks_failure(load: Any) -> None:
    """500, because the caller cannot fix it."""
    code = load(ANNOTATED)
    assert {"probability": 0.25} == code.postprocess(0.25, {})
    with pytest.raises(UserCodeFailed, match="Survival does not allow: probability"):
        code.postprocess(2.0, {})


def test_classes_inside_check_and_leave_a_dict(load: Any) -> None:
    """A class in ClearML's form that indexes its body still works, async too."""
    code = load(NESTED)
    assert {"z": 3} == asyncio.run(code.process({"x": 2}, {}))
    with pytest.raises(UserCodeRefused, match="x: Field required"):
        code.process({}, {})


def test_schemas_are_json_schema_of_both_models(load: Any) -> None:
    """For OpenAPI. A class without models has none, even if it imports pydantic."""
    schemas = load(ANNOTATED).schemas
    assert ["age"] == schemas["request_schema"]["required"]
    assert {"probability"} == set(schemas["response_schema"]["properties"])
    plain = (
        "import pydantic\nclass Preprocess:\n    def process(self, data: dict, state) -> dict:\n        return data\n"
    )
    assert {} == load(plain).schemas


BATCH = """
class Preprocess:
    def preprocess_batch(self, bodies, states):
        self.seen = len(bodies)
        for body, state in zip(bodies, states):
            state["n"] = body["n"]
        return [ValueError("odd") if b["n"] % 2 else b["n"] for b in bodies]
    def process(self, data, state, s=None):
        return data * 10
    async def postprocess_batch(self, data, states, collect_custom_statistics_fns):
        for collect, value in zip(collect_custom_statistics_fns, data):
            collect({"value": value})
        return [{"y": d, "n": s["n"], "together": len(data)} for d, s in zip(data, states)]
"""


def test_batch_methods_take_one_request_too(load: Any) -> None:
    """A class with nothing but batch methods serves single requests."""
    code = load(BATCH)
    state: dict[str, Any] = {}
    seen: dict[str, Any] = {}
    assert ["preprocess", "process", "postprocess"] == code.stages
    assert 4 == code.preprocess({"n": 4}, state)
    assert {"y": 40, "n": 4, "together": 1} == asyncio.run(code.postprocess(40, state, seen.update))
    assert {"value": 40} == seen
    with pytest.raises(UserCodeRefused, match="odd"):
        code.preprocess({"n": 3}, {})


def test_batch_that_returns_the_wrong_number_fails_with_both_numbers(load: Any) -> None:
    """The assignment of answers to requests would be a guess."""
    code = load("class Preprocess:\n    def process_batch(self, data, states):\n        return data[:1]\n")
    with pytest.raises(UserCodeFailed, match="list of 2 values, one per request, and returned 1"):
        code.batch_hooks["process"]([1, 2], [{}, {}], [None, None])

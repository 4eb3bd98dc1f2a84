"""Answers of users' classes are written as FastAPI writes them, which clearml-serving answers through."""

from __future__ import annotations

import json
from collections import deque
from dataclasses import dataclass
from datetime import UTC, datetime, time, timedelta
from decimal import Decimal
from enum import Enum
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import numpy as np
import orjson
import pytest
from fastapi.encoders import jsonable_encoder
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, Field

from gateway.hooks.json_form import to_json
from tests.unit.gateway.conftest import answering


class Colour(Enum):
    RED = "red"


class Model(BaseModel):
    value: int = Field(serialization_alias="theValue")
    took: timedelta


@dataclass
class Point:
    x: Decimal
    y: int


class Plain:
    def __init__(self) -> None:
        self.name, self.size, self._sa_state = "n", 2**63, "of SQLAlchemy"


_VALUES: tuple[Any, ...] = (
    Decimal("1.50"), Path("a/b"), deque([1, Decimal("2.5")]), {1}, b"bytes", UUID(int=7), time(1, 2, tzinfo=UTC),
    datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC), Colour.RED, Model(value=1, took=timedelta(seconds=1)),
    Point(Decimal("2"), 2), Plain(), (1, 2), -(2**63), 2**64 - 1, {Path("p"): 1, Colour.RED: 2, 1: 4, None: 5},
)  # fmt: skip


def _as_fastapi(value: Any) -> Any:
    return json.loads(json.dumps(jsonable_encoder(value), ensure_ascii=False, allow_nan=False))


@pytest.mark.parametrize("value", _VALUES, ids=lambda value: f"{type(value).__name__}-{str(value)[:20]}")
def test_every_type_is_written_as_fastapi_writes_it(value: Any) -> None:
    """By itself, and inside other values."""
    for one in (value, [value], {"a": (value, "b")}, deque([{"a": value}])):
        assert _as_fastapi(one) == json.loads(to_json(one))


@given(st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.text()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.decimals(allow_nan=False, allow_infinity=False, places=3, max_value=10**9, min_value=-(10**9))
    | st.timedeltas() | st.dates() | st.uuids(),
    lambda inner: (
        st.lists(inner) | st.tuples(inner) | st.dictionaries(st.text(), inner) | st.builds(deque, st.lists(inner))
    ),
    max_leaves=20,
))  # fmt: skip
def test_values_of_any_depth_are_written_as_fastapi_writes_them(value: Any) -> None:
    """Whatever they are made of."""
    assert _as_fastapi(value) == json.loads(to_json(value))


_LOOP = SimpleNamespace()
_LOOP.itself = _LOOP


@pytest.mark.parametrize(
    "value", [object, 1j, [1j], {(1, 2): 3}, {"a": iter([1])}, {"a": [2**64]}, {1, -(2**63) - 1}, _LOOP]
)
def test_what_has_no_json_form_raises_an_error(value: Any) -> None:
    """And never writes something else, nor for ever. Readers would make floats of integers beyond 64 bits."""
    with pytest.raises((TypeError, ValueError, RecursionError)):
        to_json(value)


def test_arrays_are_lists_and_nan_is_null() -> None:
    """FastAPI answers 500 for both; models answer with them. Also inside what only FastAPI writes."""
    found = {"a": np.array([[1.0, np.nan]]), "b": np.int64(3)}
    assert b'{"a":[[1.0,null]],"b":3}' == to_json(found) == to_json(SimpleNamespace(**found))
    assert b"[1]\n" == to_json([1], orjson.OPT_APPEND_NEWLINE)


async def test_a_class_may_answer_with_any_of_them_over_the_open_inference_protocol(stack: Any) -> None:
    """`test_processes.py` has the endpoint's own form."""
    stack.add_hook("h", "import datetime\n" + answering("{'result': {'took': datetime.timedelta(seconds=90)}}"))
    await stack.served("h")
    tensor = {"name": "x", "datatype": "FP32", "shape": [1], "data": [1]}
    reply = await stack.client.post("/v2/models/h/infer", json={"inputs": [tensor]})
    outputs = {output["name"]: output["data"] for output in reply.json()["outputs"]}
    assert {"took": 90.0} == json.loads(outputs["result"][0])

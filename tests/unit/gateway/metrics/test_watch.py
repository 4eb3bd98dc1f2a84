"""Declared and built-in variables: every declaration and every value has one outcome, and none is an exception."""

from __future__ import annotations

import asyncio
import json
import math
import random
import re
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families

from gateway.metrics import declared
from gateway.metrics.drift import Reference, encode
from gateway.metrics.observer import Observer
from gateway.metrics.watch import Served
from gateway.spec import MetricSpec, MetricVariable
from gateway.trace import Trace
from preprocessing.types import Encoded
from tests import expositions

V = MetricVariable


def spec(*variables: MetricVariable, endpoint: str = "e/1", frequency: float | None = None) -> dict[str, MetricSpec]:
    """Return a declaration for one endpoint."""
    return {endpoint: MetricSpec(endpoint, frequency, variables)}


class Broken(str):
    """A value of a hook's that raises."""

    def __str__(self) -> str:
        raise OSError


class Watched:
    """An observer that watches `e/1`."""

    def __init__(self, specs: dict[str, MetricSpec], served: Served | None = None, **options: Any) -> None:
        self.observer = Observer(**options)
        self.served = served or Served("e", "1")
        self.configure(specs)

    def configure(self, specs: dict[str, MetricSpec]) -> None:
        self.observer.watch.configure({"e/1": self.served}, specs, 1.0)

    def answer(self, body: object, answer: object, custom: dict[str, object] | None = None, **fields: Any) -> None:
        """Count one answered request."""
        trace = Trace("id")
        trace.endpoint, trace.version, trace.url, trace.custom = "e", "1", "e/1", custom
        trace.body, trace.answer = body, answer
        for name, value in fields.items():
            setattr(trace, name, value)
        self.observer.started()
        self.observer.finished(trace)

    def read(self) -> dict[str, float]:
        """Return samples of variables and drift: `name{variable,other label}` to value."""
        return read(expositions.render(self.observer.snapshot()))


def read(text: bytes) -> dict[str, float]:
    """Return samples of variables and drift by a short key."""
    found = {}
    for family in text_string_to_metric_families(text.decode()):
        for sample in family.samples:
            if "variable" in sample.labels:
                rest = [v for k, v in sorted(sample.labels.items()) if k not in ("endpoint", "version", "variable")]
                key = ",".join([sample.labels["variable"], *rest])
                found[f"{sample.name.removeprefix('gateway_').removeprefix('variable_')}{{{key}}}"] = sample.value
    return found


@pytest.mark.parametrize(
    ("kind", "buckets", "values", "expected"),
    [
        ("scalar", (0.1, 0.5), (0.05, 0.5, 7), {"bucket{x,0.1}": 1, "bucket{x,0.5}": 2, "bucket{x,+Inf}": 3,
                                                "count{x}": 3, "sum{x}": 7.55}),
        ("scalar", (1.0,), ([1, True, np.float32(0.5)],), {"bucket{x,1.0}": 3, "bucket{x,+Inf}": 3, "count{x}": 3,
                                                           "sum{x}": 2.5}),
        # Clients can send any number of values, but there is one series for unknown ones.
        ("enum", ("cat", "dog"), ("cat", "dog", "cat", "eel", "owl"), {"{x,cat}": 2, "{x,dog}": 1, "{x,other}": 2}),
        # As Python writes them.
        ("enum", ("True", "1", "0.5"), (True, np.True_, 1, np.int64(1), 0.5, 1.0, "true"),
         {"{x,True}": 2, "{x,1}": 2, "{x,0.5}": 1, "{x,other}": 2}),
        ("value", (), (0.3, 0.5), {"value{x}": 0.5}),
        ("scalar", (1.0,), ("3", {}), {"{x,wrong_type}": 2}),
        ("scalar", (1.0,), (math.nan, 10**400, [9e307] * 3), {"{x,not_finite}": 5}),
        ("value", (), (math.inf, None), {"{x,not_finite}": 1, "{x,missing}": 1}),
        ("enum", ("a",), (b"a", []), {"{x,wrong_type}": 1, "{x,missing}": 1}),
        ("enum", ("a",), (Broken("a"), "a"), {"{x,wrong_type}": 1, "{x,a}": 1}),
    ],
)  # fmt: skip
def test_every_value_of_a_variable_is_counted_or_ignored_with_a_reason(
    kind: str, buckets: tuple[Any, ...], values: tuple[object, ...], expected: dict[str, float], caplog: Any
) -> None:
    """The request and the other variables are unaffected. A value that raises is logged as well."""
    watched = Watched(spec(V("x", kind, buckets), V("y", "value")))
    for value in values:
        watched.answer({"x": value, "y": 1}, {})
    found = watched.read()
    assert 1 == found.pop("value{y}")
    prefix = re.compile("^(scalar_|enum_total|ignored_total)")
    assert pytest.approx(expected) == {prefix.sub("", name): number for name, number in found.items()}
    assert any(isinstance(value, Broken) for value in values) == ("was not counted" in caplog.text)


@given(
    value=st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5) | st.binary(max_size=3),
        lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=2), inner, max_size=3),
    ),
    kind=st.sampled_from(declared.KINDS),
)
def test_no_value_fails(value: object, kind: str) -> None:
    """For any JSON value."""
    watched = Watched(spec(V("x", kind, (0.0, 1.0) if kind == "scalar" else ("a", "b")), V("x.a", kind, (1.0,))))
    watched.answer({"x": value}, value)
    watched.answer({"x": value}, value)
    for name, number in watched.read().items():
        assert math.isfinite(number), name  # two huge numbers would add up to infinity, for good


@pytest.mark.parametrize(
    ("frequency", "outcome", "counted"), [(0.2, "ok", 1_000), (0.0, "ok", 0), (1.0, "hook_failed", 0)]
)
def test_a_share_of_the_answers_is_counted(frequency: float, outcome: str, counted: int) -> None:
    """With --log-freq 0.2 about every fifth, of all variables at once, as in clearml-serving; with 0 none."""
    variables = V("x", "scalar", (1.0,)), V("a", "enum", ("cat",))
    watched = Watched(spec(*variables, frequency=frequency), chance=random.Random(7).random)
    for _ in range(5_000):
        watched.answer({"x": 2, "a": "cat"}, {}, outcome=outcome)
    found = watched.read()
    assert math.isclose(counted, found.get("scalar_count{x}", 0), rel_tol=0.1)
    assert found.get("enum_total{a,cat}", 0) == found.get("scalar_count{x}", 0)


def test_an_unchanged_declaration_continues_counting() -> None:
    """A swap of another version resets nothing."""
    watched = Watched(spec(V("x", "scalar", (1.0,))))
    watched.answer({"x": 2}, {})
    watched.configure(spec(V("x", "scalar", (1.0,)), V("y", "value")))
    watched.answer({"x": 2}, {})
    assert 2 == watched.read()["scalar_count{x}"]


def encoded(tokens: int, unknown: int = 0) -> Encoded:
    """Return one text."""
    return Encoded(np.zeros(tokens, dtype=np.int64), None, unknown, False)


def test_text_tasks_have_variables_without_a_declaration() -> None:
    """Per text: token length, unknown ratio, label, top score. An unreadable result costs only its own count."""
    watched = Watched({}, Served("e", "1", is_text=True, labels=("GOOD", "BAD")))
    good, bad = {"label": "GOOD", "score": 0.5}, {"label": "BAD", "score": 1.0}
    entities = {"entities": [{"entity_group": "GOOD", "score": 0.5}, {"entity": "B-BAD", "score": 0.5}]}
    watched.answer({"text": "a"}, good, encoded=[encoded(4, 1)])
    watched.answer({"text": ["a", "b"]}, {"results": [bad, bad]}, encoded=[encoded(8), encoded(32)])
    for answer in ({"label": "GOOD"}, {**good, "score": "x"}, {"entities": [{}]}, {"results": 5}, entities):
        watched.answer({}, answer)
    found = watched.read()
    assert (44, 3) == (found["scalar_sum{token_length}"], found["scalar_count{token_length}"])
    assert (0.25, 3) == (found["scalar_sum{unknown_token_ratio}"], found["scalar_count{unknown_token_ratio}"])
    assert (2, 3) == (found["enum_total{predicted_label,GOOD}"], found["enum_total{predicted_label,BAD}"])
    assert (3.5, 5) == (found["scalar_sum{top_score}"], found["scalar_count{top_score}"])


def test_a_declared_variable_replaces_a_built_in_one() -> None:
    """A name has one meaning per endpoint: the user's."""
    watched = Watched(spec(V("token_length", "value")), Served("e", "1", is_text=True))
    watched.answer({"token_length": 9}, {}, encoded=[encoded(4)])
    found = watched.read()
    assert 9 == found["value{token_length}"]
    assert "scalar_count{token_length}" not in found


def test_the_references_counts_are_shown() -> None:
    """Until there is another one; whose bins are not those of the variable is not."""
    declared = spec(V("x", "scalar", (1.0, 5.0)), V("a", "enum", ("cat", "dog")), V("n", "value"))
    bins = {"x": {"5": 20.0, "+Inf": 10.0, "missing": 1.0}, "a": {"cat": 30.0, "other": 0.0, "missing": 0.0}}
    changed = {"a": bins["a"], "x": {"2": 20.0, "+Inf": 10.0, "missing": 0.0}, "n": bins["a"]}
    watched = Watched(declared)
    for reference, shown in ((bins, bins), (changed, {"a": bins["a"]})):
        watched.served = Served("e", "1", reference=Reference(reference))
        watched.configure(declared)
        assert {
            f"drift_reference_observations{{{name},{of}}}": n for name in shown for of, n in shown[name].items()
        } == {name: n for name, n in watched.read().items() if name.startswith("drift")}
    watched.served = Served("e", "1", is_text=True, reference=Reference(bins, ("film",), (1.0, 0.0)))
    watched.configure(declared)
    assert (("film",), (1.0, 0.0)) == watched.observer.watch.learned("e/1")


HOOK = """
class Preprocess:
    def process(self, body, state, collect_custom_statistics_fn=None):
        collect_custom_statistics_fn(body.get("report"))
        return {"y": [n * 2 for n in body["n"]]}
"""


async def shown(stack: Any, name: str, least: float) -> dict[str, float]:
    """Return what is shown when ``name`` has grown to ``least``: requests are counted when they have been answered."""
    while (found := read((await stack.client.get("/metrics")).content)).get(name, 0) < least:
        await asyncio.sleep(0.01)
    return found


def declare(stack: Any, endpoint: str, **metrics: dict[str, Any]) -> None:
    """Declare metrics as `clearml-serving metrics add` does."""
    stack.registry.sections["metric_logging"] = json.dumps({endpoint: {"endpoint": endpoint, "metrics": metrics}})


def is_declared(stack: Any) -> bool:
    """Whether variables of the hook are counted."""
    return bool(stack.gateway.observer.watch._watched["h"].source[1].variables)


async def test_declaration_is_live_and_hooks_may_report_anything(stack: Any) -> None:
    """metrics add needs no restart; a report that is not a mapping fails no request. Inputs of the Open Inference
    Protocol, which a hook gets by name, are found as those of a JSON body are.
    """
    stack.add_hook("h", HOOK)
    await stack.served("h")
    post = stack.client.post
    assert 200 == (await post("/serve/h", json={"n": [1], "report": {"z": 4}})).status_code
    of = {"type": "scalar", "buckets": [1, 5]}
    declare(stack, "h/*", n={"type": "value"}, y=of, z=of)
    await stack.until(lambda: is_declared(stack))
    for report in ({"z": 4}, {"z": "wrong"}, 7, None):
        assert 200 == (await post("/serve/h", json={"n": [3], "report": report})).status_code
    tensor = {"name": "n", "shape": [2], "datatype": "INT64", "data": [3, 4]}
    assert 200 == (await post("/v2/models/h/infer", json={"inputs": [tensor]})).status_code
    found = await shown(stack, "scalar_count{y}", 6)
    assert (4, 6, 4 * 6 + 14) == (found["value{n}"], found["scalar_count{y}"], found["scalar_sum{y}"])
    assert (1, 1, 3) == tuple(
        found[k] for k in ("scalar_count{z}", "ignored_total{z,wrong_type}", "ignored_total{z,missing}")
    )


def test_an_embedding_is_counted_by_its_cosine_to_the_mean() -> None:
    """For one text and for several; truncated vectors are skipped, and other tasks have no such variable."""
    vector = np.linspace(-1, 1, 16, dtype=np.float32)
    watched = Watched({}, Served("e", "1", is_text=True, reference=Reference(mean=(*vector.tolist(),))))
    watched.answer({}, {"label": "GOOD"})
    assert "scalar_count{embedding_cosine}" not in watched.read()
    for answer in ({"embedding": vector}, {"embeddings": np.stack([vector] * 2)}, {"embedding": vector[:8]}):
        watched.answer({}, answer)
    watched.answer({}, {"embedding": "nothing like it"})
    found = watched.read()
    assert [3, 0, 3] == [found[f"scalar_{of}"] for of in (
        "count{embedding_cosine}", "bucket{embedding_cosine,0.99}", "bucket{embedding_cosine,1.0}"
    )]  # fmt: skip


async def test_what_texts_look_like_is_counted_after_the_answer(stack: Any) -> None:
    """Through a whole gateway; words are shown only to operators, once the usual ones are known. Callers' parameters
    change nothing: with one label only, or logits, the model's own label and score are counted.
    """
    stack.deploy("t")
    await stack.served("t")
    texts, seen = [f"das ist nicht gut {number}" for number in range(19)] + ["ПРИВЕТ"], []
    first: dict[str, float] = {}
    for times, parameters in enumerate(({}, {"top_k": 1}, {"function_to_apply": "none"}), start=1):
        body = {"text": texts, "parameters": parameters} if parameters else {"text": texts}
        assert 200 == (await stack.client.post("/serve/t", json=body)).status_code
        found = await shown(stack, "scalar_count{top_score}", 20 * times)
        first = first or found
        seen.append({k: round(v / times, 9) for k, v in found.items() if "predicted_label" in k or "top_score" in k})
        assert [20 * times] * 2 == [found[f"scalar_count{{{name}}}"] for name in ("token_length", "top_score")]
    assert [seen[0]] * 3 == seen
    looked_at = "letter_case,lower", "letter_case,upper", "language,de", "language,none"
    assert [19, 1, 19, 1] == [first[f"enum_total{{{value}}}"] for value in looked_at]
    learned = (await stack.client.get("/v1/endpoints/t/learned")).json()
    assert {"url": "t", "words": [], "mean": []} == learned
    assert 404 == (await stack.client.get("/v1/endpoints/none/learned")).status_code
    file = stack.settings.state_dir / "references" / "t.json"
    file.parent.mkdir()
    file.write_text(encode(Reference({"top_score": {"1": 3.0, "+Inf": 0.0}})))  # it is read at the next poll
    await shown(stack, "drift_reference_observations{top_score,1}", 3)


async def test_an_invalid_declaration_is_reported_and_affects_nothing_else(stack: Any) -> None:
    """Like every fault of the configuration."""
    stack.add_hook("h", HOOK)
    declare(stack, "h", x={"type": "scalar", "buckets": ["low"]})
    await stack.served("h")
    assert ["metrics h"] == [fault["subject"] for fault in (await stack.client.get("/v1/status")).json()["faults"]]

"""No body makes the server fail, or wipes what it does not name: fields of every call with values of wrong kinds."""

# ruff: noqa: D103 - a test's name states its rule

import itertools
import json
from typing import Any

import pytest

from deploy.controlplane.app import CALLS
from tests.control_planes import InProcess

# what a client may send by mistake or on purpose, as JSON text: not all of it can be written from Python values
WRONG = [
    "null", "true", "0", "-1", "1.5", "1e999", "NaN", "-Infinity", str(10**30), str(2**63), '""', '"none"', '"\\ud800"',
    '"a\\u0000b"', '"' + "a." * 3000 + '"', "[]", "[null]", "[1]", '["x"]', "[[]]", "[{}]", "{}", '{"a":1}',
    '{"a":null}', '{"a":[1]}', '{"a":{"b":1}}', '{"a":{"b":{"c":1}}}', '{"":{}}', '[{"key":1}]', '[{"key":["x"]}]',
    '[{"name":{}}]', '[{"section":[]}]', '[{"section":"a","name":{}}]', '{"input":[1]}', '{"output":[{"name":[]}]}',
    '{"artifacts":[1]}', '{"artifacts":[{"key":{}}]}', '{"artifacts":[{"uri":"x"}]}', '{"pattern":1,"fields":[1]}',
    '{"pattern":"(","fields":["a"]}', '{"pattern":"x","fields":{"a":1}}', '[{"task":{}}]',
    '[{"task":"x","variants":1}]',
    *("[" * depth + "]" * depth for depth in (90, 5000)),
    *('{"a":' * depth + "1" + "}" * depth for depth in (90, 5000)),
]  # fmt: skip


TASK = {"tasks", "events"}


def bodies(server: InProcess) -> dict[str, dict[str, Any]]:
    """A body that would be right for each call, and its objects."""
    task, model = server.task(), server.model("s3://bucket/model.onnx")
    server.add_events(
        {"type": "training_stats_scalar", "task": task, "metric": "m", "variant": "v", "iter": 1, "value": 2.0}
    )
    parts: dict[str, dict[str, Any]] = {
        "hyper_params": {"hyperparams": [{"section": "a", "name": "b", "value": "c"}]},
        "metadata": {"metadata": [{"key": "a"}]},
        "configuration": {"configuration": [{"name": "a", "value": "{}"}]},
        "artifacts": {"artifacts": [{"key": "a", "type": "custom"}]},
        "update_model": {"model": model, "type": "output"},
        "delete_models": {"models": [{"name": "a", "type": "input"}]},
        "requirements": {"requirements": {"pip": ""}},
    }
    found = {}
    for call in sorted(CALLS - {"events.add_batch"}):
        service, _, action = call.partition(".")
        body: dict[str, Any] = {"name": "a name", "type": "training"}
        if not action.startswith("get_all"):
            body |= {"task": task, "force": True} if service in TASK else {"model": model, "uri": "s3://bucket/o.onnx"}
        for word, fitting in parts.items():
            if word in action:
                body |= fitting
        found[call] = body
    return found


def send(server: InProcess, call: str, body: dict[str, Any], field: str, text: str) -> int:
    """Status of a call with one field replaced by JSON text, which may be none that Python could write."""
    rest = {name: value for name, value in body.items() if name != field}
    raw = json.dumps(rest)[:-1] + (", " if rest else "") + f"{json.dumps(field)}: {text}}}"
    answer = server.http.post(f"/{call}", content=raw.encode(), headers=server.bearer)
    meta = answer.json()["meta"]
    assert meta["result_code"] == answer.status_code
    assert answer.status_code in (200, 400), f"{call} with {field}={text:.60}: {meta['result_msg']}"
    return int(answer.status_code)


LISTING = ("id", "name", "status", "tags", "order_by", "only_fields", "page", "page_size", "hyperparams.a.b")


def test_no_field_of_any_call_makes_the_server_fail_and_what_was_stored_is_read_again(server: InProcess) -> None:
    values, answers = itertools.cycle(WRONG), set()
    for call, body in bodies(server).items():
        for field in [*body, "tags", "system_tags", "unknown", *(LISTING if call.endswith("get_all") else ())]:
            for text in itertools.islice(values, 7):  # prime to their number: each field meets others
                answers.add(send(server, call, body, field, text))
    assert answers == {200, 400}
    server.task(system_tags=5)
    for name in ("tasks.get_all", "models.get_all", "projects.get_all"):
        server.call(name, order_by=["-name"])


def test_batch_with_an_event_that_cannot_be_read_changes_nothing(server: InProcess) -> None:
    task = server.task()
    good = {"type": "training_stats_scalar", "task": task, "metric": "m", "variant": "v", "iter": 1, "value": 2.0}
    for wrong in ({"type": ["log"]}, {"iter": "x"}, {"iter": [1]}, {"metric": {"a": 1}}):
        assert server.add_events(good, good | wrong) == (12, {})
    assert server.get(task)["last_metrics"] == {}


@pytest.mark.parametrize("value", ["none", 1, [], False, True, "everything"])
def test_a_word_for_true_wipes_nothing(server: InProcess, value: Any) -> None:
    """`replace_configuration: "none"` counted as true and wiped every section."""
    params = {"a": {"x": {"section": "a", "name": "x", "value": "1"}}}
    task = server.task(configuration={"a": {"name": "a", "value": "1"}}, hyperparams=params)
    body = {"task": task, "configuration": [{"name": "b", "value": "2"}], "force": True}
    server.call("tasks.edit_configuration", **body, replace_configuration=value)
    assert server.get(task)["configuration"].keys() == ({"b"} if value is True else {"a", "b"})
    item = {"section": "b", "name": "y", "value": "2"}
    server.call("tasks.edit_hyper_params", task=task, hyperparams=[item], replace_hyperparams=value)
    assert server.get(task)["hyperparams"].keys() == {"a", "b"}


def test_failed_call_leaves_nothing_and_json_keeps_numbers_that_python_clients_send(server: InProcess) -> None:
    def fail() -> None:
        with server.store.transaction() as tx:
            tx.put("tasks", {"id": "x"})
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fail()
    with server.store.transaction() as tx:
        assert tx.get("tasks", "x") is None
    task = server.task()
    body = b'{"task": "%s", "runtime": {"a": NaN, "b": 1%s}}' % (task.encode(), b"0" * 40)
    assert server.http.post("/tasks.edit", content=body, headers=server.bearer).status_code == 200
    assert server.get(task)["runtime"]["b"] == 10**40

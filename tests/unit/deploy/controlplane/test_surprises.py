"""What a ClearML server does that surprises, and this one too; `docs/clearml.md#surprises` tells the worst."""

# ruff: noqa: D103 - a test's name states its rule

from typing import Any

from tests.control_planes import BASE, InProcess


def stored(server: InProcess) -> str:
    """A model of the stock CLI: an upload to the service's folder, then its address."""
    model = server.model(f"{BASE}/files/uploading_file")
    server.upload("/P/service.1/models/model.onnx", b"data")
    server.call("models.edit", model=model, uri=f"{BASE}/files/P/service.1/models/model.onnx")
    return model


def sections_of(**texts: str) -> dict[str, Any]:
    return {name: {"name": name, "value": text} for name, text in texts.items()}


def test_stale_whole_configuration_is_written_back(server: InProcess) -> None:
    """The last one to write has written: nothing is merged."""
    task = server.task(type="service", name="serving")
    server.call("tasks.edit", task=task, force=True, configuration=sections_of(endpoints="{}", canary="w = [0.2, 0.8]"))
    slow = server.token
    stale = server.get(task)["configuration"]
    server.token = server.login()
    decided = sections_of(endpoints="a { b = 1 }", canary="w = [0.0, 1.0]")
    server.call("tasks.edit", task=task, force=True, configuration=decided)
    server.token = slow
    server.call("tasks.edit", task=task, force=True, configuration=stale)
    assert server.get(task)["configuration"] == stale


def test_task_is_published(server: InProcess) -> None:
    task = server.task()
    models = [server.model(f"s3://x/{name}.onnx") for name in "ab"]
    for model in models:
        server.call("tasks.add_or_update_model", task=task, name=model, model=model, type="output")
    server.call("tasks.publish", task=task, force=True)
    assert [server.get_model(model)["ready"] for model in models] == [False, True]


def test_parts_of_a_task_in_progress_are_edited(server: InProcess) -> None:
    task = server.task()
    server.call("tasks.started", task=task)
    item = {"section": "General", "name": "a", "value": "1"}
    calls: list[tuple[str, dict[str, Any]]] = [
        ("tasks.edit_hyper_params", {"hyperparams": [item]}),
        ("tasks.edit_configuration", {"configuration": [{"name": "a", "value": "{}"}]}),
        ("tasks.add_or_update_artifacts", {"artifacts": [{"key": "a", "type": "custom"}]}),
    ]
    for name, body in calls:
        assert server.refused(name, task=task, **body) == (400, 110), name
        server.call(name, task=task, force=True, **body)
    # user properties are no part of the definition: any Task takes them at any time
    server.call("tasks.edit_hyper_params", task=task, hyperparams=[item | {"section": "properties"}])


def test_published_model_is_edited(server: InProcess) -> None:
    """Every field: its address, also by the placeholder of an upload that a client still has, and that it is one."""
    model = stored(server)
    server.call("models.set_ready", model=model)
    assert server.refused("models.set_ready", model=model) == (400, 203)
    server.call("models.edit", model=model, uri=f"{BASE}/files/uploading_file")
    assert server.get_model(model)["uri"].endswith("uploading_file")
    server.call("models.edit", model=model, name="renamed", tags=["t"], uri="s3://elsewhere/m.onnx")
    item = {"key": "k", "type": "str", "value": "v"}
    server.call("models.add_or_update_metadata", model=model, metadata=[item])
    found = server.get_model(model)
    assert (found["name"], found["tags"], found["uri"]) == ("renamed", ["t"], "s3://elsewhere/m.onnx")
    assert found["metadata"] == {"k": item}
    assert found["ready"] is True
    server.call("models.edit", model=model, ready=False)
    assert server.get_model(model)["ready"] is False

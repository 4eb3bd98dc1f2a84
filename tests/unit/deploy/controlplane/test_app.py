"""Rules of the HTTP surface: authentication, bodies, envelopes, queries, files, protections."""

# ruff: noqa: D103 - a test's name states its rule

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from gateway.registry.clearml.decode import MODEL_FIELDS, model_record
from tests.control_planes import BASE, InProcess, in_process


@pytest.fixture
def server(tmp_path: Path) -> Iterator[InProcess]:
    with in_process(tmp_path) as running:
        yield running


# --- authentication


@pytest.mark.parametrize(
    ("header", "subcode"),
    [
        (None, 20),
        ("Digest x", 10),
        ("Basic !!!", 21),
        ("Basic bm9jb2xvbg==", 21),
        ("Basic d3Jvbmc6d3Jvbmc=", 22),
        ("Bearer nonsense", 30),
    ],
)
def test_wrong_credentials_get_clearmls_401_bodies(server: InProcess, header: str | None, subcode: int) -> None:
    headers = {"Authorization": header} if header else {}
    for path in ("/auth.login", "/v2.23/tasks.get_all"):
        answer = server.http.get(path, headers=headers)
        assert answer.status_code == 401
        assert answer.json()["meta"]["result_code"] == 401
        assert answer.json()["meta"]["result_subcode"] == subcode
        assert answer.json()["data"] == {}


def test_token_renews_a_token(server: InProcess) -> None:
    renewed = server.http.get("/auth.login?expiration_sec=3600", headers=server.bearer).json()["data"]["token"]
    assert renewed != server.token
    answer = server.http.get("/v2.23/tasks.get_all", headers={"Authorization": f"Bearer {renewed}"})
    assert answer.status_code == 200


def test_health_needs_no_credentials(server: InProcess) -> None:
    assert server.http.get("/healthz").json() == {"status": "ok"}


@pytest.mark.parametrize(
    ("method", "path"), [("GET", "/files/x"), ("HEAD", "/files/x"), ("DELETE", "/files/x"), ("POST", "/files")]
)
def test_files_need_credentials(server: InProcess, method: str, path: str) -> None:
    assert server.http.request(method, path).status_code == 401


# --- calls


@pytest.mark.parametrize("method", ["GET", "POST", "PUT"])
@pytest.mark.parametrize("prefix", ["", "/v2.13", "/v2.23", "/v2.34", "/v999.0"])
def test_body_is_read_whatever_the_method_and_version(server: InProcess, method: str, prefix: str) -> None:
    task = server.task()
    answer = server.http.request(
        method, f"{prefix}/tasks.get_by_id", content=json.dumps({"task": task, "method": "get"}), headers=server.bearer
    )
    assert answer.json()["data"]["task"]["id"] == task


def test_unknown_endpoint_answers_404_0(server: InProcess) -> None:
    assert server.refused("queues.get_all") == (404, 0)


def test_bad_version_answers_400_2(server: InProcess) -> None:
    answer = server.http.get("/vX/tasks.get_all", headers=server.bearer)
    assert (answer.status_code, answer.json()["meta"]["result_subcode"]) == (400, 2)


@pytest.mark.parametrize("body", ["{", "[1]", '"x"'])
def test_body_that_is_no_object_answers_400_12(server: InProcess, body: str) -> None:
    answer = server.http.post("/tasks.get_all", content=body, headers=server.bearer)
    assert (answer.status_code, answer.json()["meta"]["result_subcode"]) == (400, 12)


def test_refusals_have_clearmls_codes(server: InProcess) -> None:
    task = server.task()
    server.call("tasks.publish", task=task, force=True)
    assert server.refused("tasks.get_by_id") == (400, 11)
    assert server.refused("tasks.get_by_id", task="none") == (400, 101)
    assert server.refused("models.get_by_id", model="none") == (400, 201)
    assert server.refused("projects.get_by_id", project="none") == (400, 401)
    assert server.refused("projects.create", name=" ") == (400, 12)
    assert server.refused("tasks.create", name="ab", type="training") == (400, 800)
    assert server.refused("tasks.edit", task=task, comment="x") == (400, 110)
    assert server.refused("tasks.delete", task=task) == (400, 123)
    assert server.refused("tasks.create", name="abc", type="training", project="none") == (400, 401)


# --- tasks


def test_status_machine_is_enforced_unless_forced(server: InProcess) -> None:
    task = server.task()
    assert server.refused("tasks.completed", task=task) == (400, 110)
    server.call("tasks.started", task=task)
    server.call("tasks.completed", task=task, status_reason="done")
    assert server.refused("tasks.failed", task=task) == (400, 110)
    server.call("tasks.failed", task=task, force=True, status_message="boom")
    found = server.get(task)
    assert (found["status"], found["status_message"]) == ("failed", "boom")


def test_last_change_moves_on_every_edit_last_update_only_on_activity(server: InProcess) -> None:
    task = server.task()
    before = server.get(task)
    server.call("tasks.edit", task=task, force=True, tags=["x"], name="another")
    tagged = server.get(task)
    assert tagged["last_change"] > before["last_change"]
    assert tagged["last_update"] == before["last_update"]
    server.call("tasks.edit", task=task, force=True, runtime={"a": "b"})
    edited = server.get(task)
    assert edited["last_change"] == edited["last_update"] > tagged["last_change"]


def test_ping_and_events_are_no_edits(server: InProcess) -> None:
    """A gateway polls last_change: heartbeats and reports must not look like configuration changes."""
    task = server.task()
    before = server.get(task)
    server.call("tasks.ping", task=task)
    server.add_events(scalar(task, 1.0, 3))
    after = server.get(task)
    assert after["last_change"] == before["last_change"]
    assert after["last_update"] > before["last_update"]
    assert after["last_iteration"] == 3


def test_embedded_documents_merge_one_level_others_are_replaced(server: InProcess) -> None:
    task = server.task()
    server.call("tasks.edit", task=task, script={"binary": "python3", "diff": "d"}, container={"image": "a"})
    server.call("tasks.edit", task=task, script={"diff": "e"}, container={"arguments": "b"}, output_dest="s3://x")
    found = server.get(task)
    assert (found["script"]["binary"], found["script"]["diff"]) == ("python3", "e")
    assert found["container"] == {"arguments": "b"}
    assert found["output"] == {"destination": "s3://x"}


def test_service_discovery_finds_open_serving_tasks_in_insertion_order(server: InProcess) -> None:
    first, second, closed, _ = (server.task(type="service", name=f"service {n}") for n in range(4))
    for task in (first, second, closed):
        server.call("tasks.edit", task=task, force=True, system_tags=["serving-control-plane"])
    server.call("tasks.failed", task=closed, force=True)
    found = server.call(
        "tasks.get_all",
        type=["service"],
        system_tags=["serving-control-plane"],
        status=["created", "in_progress"],
        only_fields=["name", "tags"],
        page=0,
        page_size=500,
    )["tasks"]
    assert found == [
        {"id": first, "name": "service 0", "tags": []},
        {"id": second, "name": "service 1", "tags": []},
    ]


def test_hyperparameters_are_edited_one_by_one(server: InProcess) -> None:
    task = server.task()
    for name in ("a.b/c d", "x"):
        server.call("tasks.edit_hyper_params", task=task, hyperparams=[{"section": "G", "name": name, "value": "1"}])
    server.call("tasks.delete_hyper_params", task=task, hyperparams=[{"section": "G", "name": "x"}])
    assert server.get(task)["hyperparams"] == {"G": {"a.b/c d": {"section": "G", "name": "a.b/c d", "value": "1"}}}


def test_deleted_task_is_gone(server: InProcess) -> None:
    task = server.task()
    server.call("tasks.delete", task=task)
    assert server.refused("tasks.get_by_id", task=task) == (400, 101)


# --- projects


def test_creating_a_project_creates_its_parents(server: InProcess) -> None:
    child = server.call("projects.create", name="one/two/three", description="")["id"]
    found = server.call("projects.get_all", order_by=["name"], only_fields=["name", "parent"])["projects"]
    assert [doc["name"] for doc in found] == ["one", "one/two", "one/two/three"]
    assert server.call("projects.get_by_id", project=child)["project"]["parent"] == found[1]["id"]
    assert [doc["name"] for doc in server.call("projects.get_all", shallow_search=True)["projects"]] == ["one"]


def test_models_below_a_project_are_not_in_it(server: InProcess) -> None:
    parent = server.call("projects.create", name="top")["id"]
    child = server.call("projects.create", name="top/sub")["id"]
    model = server.model("s3://x/m", project=child)
    assert server.call("models.get_all", project=[parent])["models"] == []
    assert server.call("models.get_all", project=[child], only_fields=["id"])["models"] == [{"id": model}]


# --- models and files


def test_records_of_several_models_by_id_say_what_single_answers_say(server: InProcess) -> None:
    """What a gateway asks for on each change, in one call instead of one per model."""
    ids = [
        server.call("models.create", name=f"model {number}", uri=f"s3://b/{number}.onnx", tags=["t"])["id"]
        for number in range(3)
    ]
    asked = {"id": [*ids, "0" * 32], "only_fields": list(MODEL_FIELDS), "page": 0, "page_size": 500}
    found = {one["id"]: one for one in server.call("models.get_all", **asked)["models"]}
    assert set(ids) == set(found)
    for model_id in ids:
        alone = server.call("models.get_by_id", model=model_id)["model"]
        assert model_record(alone) == model_record(found[model_id])


def test_archived_models_are_excluded_by_the_sdks_filter(server: InProcess) -> None:
    kept, archived = server.model("s3://x/1"), server.model("s3://x/2")
    server.call("models.archive_many", ids=[archived])
    query = {"system_tags": ["-archived"], "only_fields": ["id"], "order_by": ["-created"]}
    assert server.call("models.get_all", **query)["models"] == [{"id": kept}]
    server.call("models.unarchive_many", ids=[archived])
    assert server.call("models.get_all", **query)["models"] == [{"id": archived}, {"id": kept}]


@pytest.mark.parametrize("name", ["модель 1.onnx", 'with "quotes".bin', "100%.bin", "a+b&c=d.bin"])
def test_files_of_every_name_can_be_downloaded_by_the_recorded_uri(server: InProcess, name: str) -> None:
    server.upload(f"/P/{name}", b"data")
    raw = f"{BASE}/files/P/" + quote(name)
    model = server.model(raw)
    uri = server.call("models.get_by_id", model=model)["model"]["uri"]
    assert server.download(uri) == b"data"
    assert server.http.head(uri.removeprefix(BASE), headers=server.bearer).headers["content-length"] == "4"


@pytest.mark.parametrize("path", ["/files/%2e%2e/db", "/files/a/%2e%2e/%2e%2e/db", "/files/..%2fdb", "/files/missing"])
def test_download_never_leaves_the_store(server: InProcess, path: str) -> None:
    assert server.http.get(path, headers=server.bearer).status_code in (400, 404)


@pytest.mark.parametrize("path", ["../evil", "a/../../evil"])
def test_upload_never_leaves_the_store(server: InProcess, tmp_path: Path, path: str) -> None:
    answer = server.http.post("/files", files={path: (path, b"x")}, headers=server.bearer)
    assert answer.status_code == 400
    assert not list(tmp_path.rglob("evil"))
    assert not list((tmp_path / "files" / "tmp").iterdir())


@pytest.mark.parametrize(
    ("content_type", "body"),
    [
        ("application/json", b"{}"),
        ("multipart/form-data; boundary=x", b'--x\r\nContent-Disposition: form-data; name="a"\r\n\r\nhalf'),
        ("multipart/form-data; boundary=x", b"nonsense"),
        ("multipart/form-data", b""),
        (
            "multipart/form-data; boundary=x",
            b'--x\r\nContent-Disposition: form-data; name="a"\r\n\r\n1\r\n'
            b'--x\r\nContent-Disposition: form-data; name="b"\r\n\r\n2\r\n--x--\r\n',
        ),
    ],
)
def test_incomplete_or_malformed_upload_stores_nothing(
    server: InProcess, tmp_path: Path, content_type: str, body: bytes
) -> None:
    answer = server.http.post("/files/", content=body, headers={**server.bearer, "Content-Type": content_type})
    assert answer.status_code == 400
    assert not list((tmp_path / "files" / "tmp").iterdir())
    assert not list((tmp_path / "files" / "content").iterdir())


def test_a_second_upload_replaces_the_first_and_an_empty_one_is_a_file_too(server: InProcess) -> None:
    for content in (b"one", b"second", b""):
        server.upload("/P/m.onnx", content)
        assert server.download("/files/P/m.onnx") == content
    server.upload("P/script.py", b"x = 1")
    kind = server.http.get("/files/P/script.py", headers=server.bearer).headers["content-type"]
    assert kind.startswith("text/x-python")


def test_a_file_where_a_folder_is_and_the_other_way_round_are_refused(server: InProcess) -> None:
    server.upload("P/m", b"1")
    for path, refused, missing in (("P", 507, 404), ("P/m/below", 507, 404), ("P/" + "x" * 300, 400, 400)):
        answer = server.http.post("/files", files={path: (path, b"2")}, headers=server.bearer)
        assert answer.status_code == refused, path
        assert server.http.get(f"/files/{path}", headers=server.bearer).status_code == missing, path
    assert server.download("/files/P/m") == b"1"


def test_what_a_crash_left_of_uploads_is_removed_at_the_next_start(tmp_path: Path) -> None:
    with in_process(tmp_path) as server:
        server.upload("P/kept", b"1")
        (tmp_path / "files" / "tmp" / "half").write_bytes(b"half")
    with in_process(tmp_path) as server:
        assert list((tmp_path / "files" / "tmp").iterdir()) == []
        assert server.download("/files/P/kept") == b"1"


def test_deleted_file_is_gone(server: InProcess) -> None:
    server.upload("P/x", b"1")
    assert server.http.delete("/files/P/x", headers=server.bearer).text == "P/x"
    assert server.http.get("/files/P/x", headers=server.bearer).status_code == 404
    assert server.http.delete("/files/P/x", headers=server.bearer).status_code == 404


def test_large_upload_streams_through(server: InProcess) -> None:
    content = bytes(range(256)) * 20_000
    server.upload("P/large.bin", content)
    assert server.download("/files/P/large.bin") == content


# --- events


def scalar(task: str, value: float, iteration: int, **more: Any) -> dict[str, Any]:
    return {
        "type": "training_stats_scalar",
        "task": task,
        "metric": "m",
        "variant": "v",
        "value": value,
        "iter": iteration,
        **more,
    }


def test_last_values_of_scalars_are_kept(server: InProcess) -> None:
    task = server.task()
    assert server.add_events(scalar(task, 1.0, 0), scalar(task, 3.0, 1), scalar(task, 9.0, -(2**31))) == (
        0,
        {"added": 3, "errors": 0, "errors_info": {}},
    )
    ((last,),) = [list(variants.values()) for variants in server.get(task)["last_metrics"].values()]
    assert (last["value"], last["min_value"], last["max_value"], last["count"]) == (9.0, 1.0, 9.0, 3)


def test_not_a_number_does_no_harm(server: InProcess) -> None:
    task = server.task()
    assert server.add_events(scalar(task, float("nan"), 0))[0] == 0
    assert server.get(task)["last_metrics"] == {}


def test_good_events_are_kept_when_others_of_the_batch_are_refused(server: InProcess) -> None:
    task = server.task()
    assert server.add_events(scalar(task, 1.0, 0), scalar("none", 1.0, 0))[1] == {
        "added": 1,
        "errors": 1,
        "errors_info": {"Invalid task id none": 1},
    }
    assert server.add_events(scalar("none", 1.0, 0)) == (131, {})


def test_reports_are_accepted_and_cannot_be_read_back(server: InProcess) -> None:
    """This server has no pages; it says so instead of answering that nothing was reported."""
    task = server.task()
    reports = [
        {"type": kind, "task": task, "metric": "p", "msg": "m"} for kind in ("log", "plot", "training_debug_image")
    ]
    assert server.add_events(*reports) == (0, {"added": 3, "errors": 0, "errors_info": {}})
    for call in ("events.get_task_log", "events.get_task_plots", "events.scalar_metrics_iter_histogram"):
        assert server.refused(call, task=task) == (404, 0)


def test_telemetry_of_serving_containers_is_accepted(server: InProcess) -> None:
    assert server.call("serving.container_status_report", container_id="x") == {}


# --- other paths


def test_a_web_link_says_that_there_are_no_pages(server: InProcess) -> None:
    """The CLI and the SDK print such links."""
    answer = server.http.get("/projects/x/experiments/y/output/log")
    assert (answer.status_code, answer.json()["meta"]["result_subcode"]) == (404, 0)
    assert server.http.delete("/tasks.get_all").status_code == 405

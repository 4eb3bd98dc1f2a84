"""Rules of the HTTP surface: authentication, bodies, envelopes, queries, files, protections."""

# ruff: noqa: D103 - a test's name states its rule

import errno
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from tests.control_planes import BASE, InProcess, in_process

# --- authentication


@pytest.mark.parametrize(
    ("header", "subcode"),
    [(None, 20), ("Digest x", 10), ("Basic !!!", 21), ("Basic bm9jb2xvbg==", 21), ("Basic d3Jvbmc6d3Jvbmc=", 22),
     ("Bearer nonsense", 30)],
)  # fmt: skip
def test_wrong_credentials_get_clearmls_401_bodies(server: InProcess, header: str | None, subcode: int) -> None:
    headers = {"Authorization": header} if header else {}
    assert server.http.get("/healthz").json() == {"status": "ok"}
    for path in ("/auth.login", "/v2.23/tasks.get_all"):
        answer = server.http.get(path, headers=headers)
        meta = answer.json()["meta"]
        assert (answer.status_code, meta["result_code"], meta["result_subcode"]) == (401, 401, subcode)
        assert answer.json()["data"] == {}
    for method, path in (("GET", "/files/x"), ("HEAD", "/files/x"), ("DELETE", "/files/x"), ("POST", "/files")):
        assert server.http.request(method, path, headers=headers).status_code == 401


# --- calls


def test_refusals_have_clearmls_codes(server: InProcess) -> None:
    task = server.task()
    server.call("tasks.publish", task=task, force=True)
    assert server.refused("tasks.get_by_id") == (400, 11)
    assert server.refused("tasks.get_by_id", task="none") == (400, 101)
    assert server.refused("models.get_by_id", model="none") == (400, 201)
    assert server.refused("projects.get_by_id", project="none") == (400, 401)
    for name in (" ", "io", "io/below"):
        assert server.refused("projects.create", name=name) == (400, 12)
    server.call("projects.create", name="twice")
    assert server.refused("projects.create", name="twice") == (400, 801)
    for body in (b"{", b"[1]", b'"x"', b"\xff\xfe{", b"[" * 100_000):
        for call in ("tasks.get_all", "events.add_batch"):
            answer = server.http.post(f"/{call}", content=body, headers=server.bearer)
            assert (answer.status_code, answer.json()["meta"]["result_subcode"]) == (400, 12), (call, body[:9])
    answer = server.http.get("/vX/tasks.get_all", headers=server.bearer)
    assert (answer.status_code, answer.json()["meta"]["result_subcode"]) == (400, 2)
    assert server.refused("tasks.create", name="ab", type="training") == (400, 800)
    assert server.refused("tasks.edit", task=task, comment="x") == (400, 110)
    assert server.refused("tasks.edit", task=task, force=True, name="ab") == (400, 800)
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


def test_ping_and_events_are_no_edits(server: InProcess) -> None:
    """A gateway polls last_change: heartbeats and reports must not look like configuration changes."""
    task = server.task()
    before = server.get(task)
    server.call("tasks.ping", task=task)
    event = {"type": "training_stats_scalar", "task": task, "metric": "m", "variant": "v", "iter": 3}
    for value in (float("nan"), 1.0):
        server.add_events(event | {"value": value})
    after = server.get(task)
    ((row,),) = (of_metric.values() for of_metric in after["last_metrics"].values())
    assert (row["value"], row["count"]) == (1.0, 1)
    assert after["last_change"] == before["last_change"]
    assert after["last_update"] > before["last_update"]
    assert after["last_iteration"] == 3


def test_hyperparameters_are_edited_one_by_one(server: InProcess) -> None:
    task = server.task()
    for name in ("a.b/c d", "x"):
        server.call("tasks.edit_hyper_params", task=task, hyperparams=[{"section": "G", "name": name, "value": "1"}])
    server.call("tasks.delete_hyper_params", task=task, hyperparams=[{"section": "G", "name": "x"}])
    assert server.get(task)["hyperparams"] == {"G": {"a.b/c d": {"section": "G", "name": "a.b/c d", "value": "1"}}}


# --- projects


def test_creating_a_project_creates_its_parents(server: InProcess) -> None:
    child = server.call("projects.create", name="one/two/three", description="")["id"]
    found = server.call("projects.get_all", order_by=["name"], only_fields=["name", "parent"])["projects"]
    assert [doc["name"] for doc in found] == ["one", "one/two", "one/two/three"]
    assert server.call("projects.get_by_id", project=child)["project"]["parent"] == found[1]["id"]
    assert [doc["name"] for doc in server.call("projects.get_all", shallow_search=True)["projects"]] == ["one"]


# --- models and files


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


PART = b'--x\r\nContent-Disposition: form-data; name="%s"\r\n\r\n%s\r\n'


@pytest.mark.parametrize(
    ("content_type", "body"),
    [
        ("application/json", b"{}"), ("multipart/form-data", b""), ("multipart/form-data; boundary=x", b"nonsense"),
        ("multipart/form-data; boundary=x", PART[:-2] % (b"a", b"half")),
        ("multipart/form-data; boundary=x", PART % (b"a", b"1") + PART % (b"b", b"2") + b"--x--\r\n"),
    ],
    ids=["no form", "no boundary", "nonsense", "half", "no file"],
)  # fmt: skip
def test_incomplete_or_malformed_upload_stores_nothing(
    server: InProcess, tmp_path: Path, content_type: str, body: bytes
) -> None:
    answer = server.http.post("/files/", content=body, headers={**server.bearer, "Content-Type": content_type})
    assert answer.status_code == 400
    assert not list((tmp_path / "files" / "tmp").iterdir())
    assert not list((tmp_path / "files" / "content").iterdir())
    for path in ("../evil", "a/../../evil"):
        assert server.http.post("/files", files={path: (path, b"x")}, headers=server.bearer).status_code == 400
    assert not list(tmp_path.rglob("evil"))


def test_a_file_where_a_folder_is_and_the_other_way_round_are_refused(server: InProcess) -> None:
    server.upload("P/m", b"1")
    for path, refused, missing in (("P", 507, 404), ("P/m/below", 507, 404), ("P/" + "x" * 300, 400, 400)):
        answer = server.http.post("/files", files={path: (path, b"2")}, headers=server.bearer)
        assert answer.status_code == refused, path
        assert server.http.get(f"/files/{path}", headers=server.bearer).status_code == missing, path
    assert server.download("/files/P/m") == b"1"


def test_an_upload_for_which_there_is_no_room_leaves_nothing(
    server: InProcess, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(_source: object, target: Any, *_: object) -> None:
        target.write(b"half")
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("deploy.controlplane.files.shutil.copyfileobj", full)
    answer = server.http.post("/files", files={"P/m": ("m", b"12345678")}, headers=server.bearer)
    assert (507, True) == (answer.status_code, "No space left" in answer.text)
    assert not list((tmp_path / "files" / "tmp").iterdir())


def test_what_a_crash_left_of_uploads_is_removed_at_the_next_start(tmp_path: Path) -> None:
    with in_process(tmp_path) as server:
        server.upload("P/kept", b"1")
        (tmp_path / "files" / "tmp" / "half").write_bytes(b"half")
    with in_process(tmp_path) as server:
        assert list((tmp_path / "files" / "tmp").iterdir()) == []
        assert server.download("/files/P/kept") == b"1"


# --- events


def test_reports_are_accepted_and_cannot_be_read_back(server: InProcess) -> None:
    """This server has no pages; it says so instead of answering that nothing was reported."""
    task = server.task()
    reports = [
        {"type": kind, "task": task, "metric": "p", "msg": "m"} for kind in ("log", "plot", "training_debug_image")
    ]
    assert server.add_events(*reports) == (0, {"added": 3, "errors": 0, "errors_info": {}})
    for call in ("events.get_task_log", "events.get_task_plots", "events.scalar_metrics_iter_histogram"):
        assert server.refused(call, task=task) == (404, 0)

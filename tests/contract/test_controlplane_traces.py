"""The embedded control plane answers what a real ClearML server 2.3.0 answered to the same requests, in their order.

Ids differ, so recorded ones are translated as they are handed out. Compared are status, result subcode, the message of
every refusal, the shape of every answer (each recorded key must be there with the recorded JSON type, what was empty
must be), and every value of the Tasks and models that were read.
"""

# ruff: noqa: D103 - a test's name states its rule

import gzip
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

from deploy.controlplane.app import build
from deploy.controlplane.credentials import Credentials
from deploy.controlplane.store import Store

DATA = Path(__file__).parents[1] / "data" / "clearml" / "exchanges.jsonl.gz"
BASE = "http://controlplane:8008"


NOT_HERE = (
    "tasks.clone", "tasks.get_hyper_params", "events.debug_images", "events.get_task_events", "events.get_task_log",
    "events.get_task_plots", "events.get_task_single_value_metrics", "events.scalar_metrics_iter_histogram",
    "models.archive_many", "models.unarchive_many",
)  # fmt: skip
"""Recorded calls that this server does not have."""
READ_LATER = (2642, 2718)
"""n of the exchanges that read what such a call has made."""
METADATA_FILTER = 404
"""n of the one exchange that differs: the recording's in-memory database failed at a filter on metadata."""


class Replay:
    """Sends recorded requests to a live server and translates ids both ways."""

    def __init__(self, client: TestClient, credentials: Credentials) -> None:
        self.client = client
        self.basic = (credentials.access_key, credentials.secret_key)
        self.token = ""
        self.ids: dict[str, str] = {}

    def live(self, recorded: str) -> str:
        text = recorded.replace("<DEAD_FILES>", "http://127.0.0.1:9").replace("<FILES>", f"{BASE}/files")
        return re.sub(r"\b[0-9a-f]{32}\b", lambda match: self.ids.get(match[0], match[0]), text)

    def call(self, method: str, path: str, body: Any = None, *, lines: bool = False) -> Any:
        content = None
        if body is not None:
            text = "\n".join(json.dumps(line) for line in body) if lines else json.dumps(body)
            content = self.live(text).encode()
        kind = "application/json-lines" if lines else "application/json"
        headers = {"Authorization": f"Bearer {self.token}", "Content-Type": kind, "X-ClearML-Client": "clearml-2.1.12"}
        return self.client.request(method, path, content=content, headers=headers)

    def api(self, record: dict[str, Any]) -> Any:
        if record["path"].startswith("/auth.login"):
            auth = ("nobody", "wrong") if record["status"] == 401 else self.basic
            response = self.client.request(record["method"], record["path"], auth=auth)
            self.token = response.json()["data"].get("token", self.token)
            return response
        request = record.get("req") or {}
        if "__jsonlines__" in request:
            return self.call(record["method"], record["path"], request["__jsonlines__"], lines=True)
        response = self.call(record["method"], record["path"], request)
        if "id" in record and response.status_code == 200:
            self.ids[record["id"]] = response.json()["data"]["id"]
        return response

    def files(self, record: dict[str, Any]) -> Any:
        headers = {"Authorization": f"Bearer {self.token}"}
        if record["method"] != "POST":
            return self.client.request(record["method"], f"/files{self.live(record['path'])}", headers=headers)
        (part,) = record["req"]["__multipart__"]
        path = re.search(r'name="([^"]+)"', self.live(part["headers"]["Content-Disposition"]))
        assert path is not None
        content = path[1].encode().ljust(part["size"], b".")[: part["size"]]
        return self.client.post("/files", files={path[1]: (path[1], content)}, headers=headers)

    def seed(self, record: dict[str, Any]) -> None:
        """Create a project or Task whose creation is not part of the recording."""
        if "project" in record:
            created = self.call("POST", "/projects.create", {"name": record["project"]})
            self.ids[record["id"]] = created.json()["data"]["id"]
            return
        task = dict(record["task"])
        created = self.call("POST", "/tasks.create", {key: task[key] for key in ("name", "type", "project")})
        self.ids[record["id"]] = created.json()["data"]["id"]
        body = {key: task[key] for key in ("system_tags", "tags", "configuration", "hyperparams", "runtime")}
        self.call("POST", "/tasks.edit", {"task": record["id"], "force": True, **body})
        if task["status"] == "in_progress":
            self.call("POST", "/tasks.started", {"task": record["id"], "force": True})


def recorded() -> list[dict[str, Any]]:
    with gzip.open(DATA, "rt", encoding="utf-8") as lines:
        return [json.loads(line) for line in lines]


def differences(wanted: Any, got: Any, path: str = "data") -> Iterator[str]:
    """What of the recorded shape is missing or of another type in an answer."""
    if isinstance(wanted, dict):
        if not isinstance(got, dict):
            yield f"{path}: expected an object, got {got!r:.60}"
            return
        for key, value in wanted.items():
            if key in got:
                yield from differences(value, got[key], f"{path}.{key}")
            else:
                yield f"{path}.{key}: missing"
    elif isinstance(wanted, list):
        if not isinstance(got, list):
            yield f"{path}: expected a list, got {got!r:.60}"
        elif bool(wanted) != bool(got):
            yield f"{path}: expected {'items, got none' if wanted else f'none, got {got!r:.60}'}"
        elif wanted:
            yield from differences(wanted[0], got[0], f"{path}[0]")
    elif wanted not in ("any", json_type(got)):
        yield f"{path}: expected {wanted}, got {got!r:.60}"


def other_values(record: dict[str, Any], known: dict[str, dict[str, Any]], replay: Replay, data: Any) -> dict[str, str]:
    """Field -> how it differs, of a Task or model that was read.

    A record has the values that have changed since the last one about the same id (`known`); `outside` names fields
    that were changed by calls that were not recorded.
    """
    (kind,) = record["shape"]
    document = known.setdefault(record["req"][kind], {})
    document |= record["values"]
    found = {}
    for name, value in json.loads(replay.live(json.dumps(document, ensure_ascii=False))).items():
        got = data[kind].get(name)
        if name == "models":
            got = {role: [{k: v for k, v in item.items() if k != "updated"} for item in got[role]] for role in got}
        if got != value and name not in record.get("outside", ()):
            found[name] = f"{got!r:.300}, recorded {value!r:.300}"
    return found


def json_type(value: Any) -> str:
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "bool"
    if isinstance(value, int | float):
        return "number"
    return "str" if isinstance(value, str) else type(value).__name__


@pytest.fixture
def replay(tmp_path: Path) -> Iterator[Replay]:
    credentials = Credentials.generate()
    store = Store(tmp_path / "registry.sqlite3")
    app = build(state_dir=tmp_path, store=store, credentials=credentials)
    with TestClient(app, base_url=BASE) as client:
        yield Replay(client, credentials)
    store.close()


def test_recorded_exchanges_get_the_recorded_answers(replay: Replay) -> None:
    """Status, subcode, all recorded keys with their types; and the messages, which people read in the CLI's output."""
    found: list[str] = []
    told: dict[str, str] = {}
    known: dict[str, dict[str, Any]] = {}
    compared = 0
    absent: set[str] = set()
    for record in recorded():
        where = f"{record['n']} {record.get('label')} {record.get('path')}"
        if record["svc"] == "seed":
            replay.seed(record)
            continue
        name = record["path"].rpartition("/")[2]
        if name in NOT_HERE or record["n"] in READ_LATER:
            absent.add(name)
            continue
        compared += 1
        if record["svc"] == "files":
            response = replay.files(record)
            if response.status_code != record["status"]:
                found.append(f"{where}: status {response.status_code}, recorded {record['status']}")
            if "content_type" in record and record["method"] == "GET":
                wanted, got = record["content_type"].split(";")[0], response.headers["content-type"].split(";")[0]
                if wanted != got:
                    found.append(f"{where}: content type {got}, recorded {wanted}")
            if "size" in record and record["size"] != len(response.content):
                found.append(f"{where}: {len(response.content)} bytes, recorded {record['size']}")
            continue
        response = replay.api(record)
        meta, data = response.json()["meta"], response.json()["data"]
        outcome, expected = (response.status_code, meta["result_subcode"]), (record["status"], record.get("subcode", 0))
        if record["status"] in (400, 401):
            told[replay.live(record["msg"])] = meta["result_msg"]
        if record["n"] == METADATA_FILTER:
            assert ((500, 0), (200, 0)) == (expected, outcome), where
            continue
        if outcome != expected:
            found.append(f"{where}: {outcome} {meta['result_msg']}, recorded {expected}")
            continue
        if "ids" in record:
            live = {item["id"] for item in next(iter(data.values()))}
            missing = {replay.ids.get(item, item) for item in record["ids"]} - live
            if missing:
                found.append(f"{where}: {len(missing)} of {len(record['ids'])} recorded results are not found")
        found += [f"{where}: {difference}" for difference in differences(record["shape"], data)]
        if "values" in record:
            other = other_values(record, known, replay, data)
            found += [f"{where}: {name}: {how}" for name, how in other.items()]
        assert response.status_code == meta["result_code"], where
    assert not found, "\n".join(found)
    assert compared == 977 - 14
    assert absent == {*NOT_HERE, "tasks.get_by_id", "models.get_by_id"}
    assert len(told) >= 5
    assert list(told) == list(told.values())

"""The registry port on a ClearML server, real or embedded: reads for gateways, writes for model sync and operators.

Only this folder knows ClearML's fields; ``decode`` makes our values of them. Sections of the serving Task are written
one by one (``tasks.edit_configuration``). A write therefore never reverts a section that someone else is changing, as
the stock CLI does by writing all sections at once.
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import cached_property
from pathlib import Path
from typing import Any, Final, Literal

from gateway.errors import GatewayError, RegistryRefused
from gateway.registry.clearml import following, models
from gateway.registry.clearml.decode import MODEL_FIELDS, model_record, serving_task
from gateway.registry.clearml.files import Files
from gateway.registry.clearml.ledger import HISTORY_TAG, REPORTS_TAG, ClearMLLedger
from gateway.registry.clearml.lineage import lineage_of
from gateway.registry.clearml.session import Api
from gateway.registry.ledger import Ledger, Record
from gateway.registry.port import ModelQuery, Parts, Upload
from gateway.spec import ModelRecord, ServingSpec, ServingTask, decode

_log = logging.getLogger("triton_gateway.registry")

_SILENCE_S: Final = 1800.0
"""A container that was silent for this long is gone; the time allows for clocks that differ."""


class ClearMLRegistry(Api):
    """Reads and changes one serving Task, its models and files; see ``Registry`` and ``RegistryWriter``.

    ``task_id`` may be empty if there is only one serving Task. It is then looked up once and reported to ``say`` (by
    default the log). ``files_rewrite`` maps address prefixes as written by uploaders to prefixes reachable from here,
    e.g. ``{"http://localhost:8081": "http://fileserver:8081"}``. ``clock`` returns seconds.
    """

    def __init__(
        self,
        task_id: str = "",
        *,
        files_rewrite: Mapping[str, str] | None = None,
        say: Callable[[str], None] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__()
        self._task_id = task_id
        self._files = Files(self, files_rewrite or {})
        self._say = say or (lambda text: _log.info("%s", text))
        self.ledger: Ledger = ClearMLLedger(self.call, self.followed)
        self.history: Ledger = ClearMLLedger(self.call, self.followed, HISTORY_TAG)
        self.reports: Ledger = ClearMLLedger(self.call, self.followed, REPORTS_TAG)
        self._heartbeat = following.Heartbeat(clock)

    def marker(self) -> str:
        """Return when the Task and our records last changed, in two small calls.

        Each call also keeps the Task alive for ClearML's watchdog if that is due; see ``following``.
        """
        fields = ["id", "last_change", "last_update", "status", "status_reason", "status_message"]
        tasks = self.call(
            "tasks", "get_all", {"id": [self.followed()], "only_fields": fields, "search_hidden": True}
        )["tasks"]  # fmt: skip
        if not tasks:
            raise RegistryRefused(
                f"serving Task {self._task_id} does not exist",
                hint="check CLEARML_SERVING_TASK_ID, or create one with `clearml-serving create --name NAME`",
            )
        self._tell(self._heartbeat.due(tasks[0]))
        of_records = ""
        with contextlib.suppress(RegistryRefused):  # reported where the records are read
            of_records = self.ledger.marker()
        return f"{tasks[0].get('last_change')}/{tasks[0].get('last_update')} {of_records}"

    def _tell(self, what: Literal["", "ping", "reopen"]) -> None:
        """Tell the server that the Task is in use; a refusal is logged only."""
        try:
            if what == "ping":
                self.call("tasks", "ping", {"task": self._task_id})
            elif what == "reopen":
                reason = "followed by triton-gateway"
                self.call(
                    "tasks", "started",
                    {"task": self._task_id, "force": True, "status_reason": reason, "status_message": reason},
                )  # fmt: skip
                _log.warning("ClearML had stopped the serving Task %s as non-responsive; it runs again", self._task_id)
        except GatewayError as error:
            _log.warning("ClearML cannot be told that the serving Task %s is in use: %s", self._task_id, error)

    def task(self) -> ServingTask:
        """Return the serving Task with our records, or with the reason why they cannot be read.

        Raises ``RegistryUnavailable``, because a Task without its records would look like one that has none.
        """
        try:
            task = serving_task(self.task_of(self.followed()))
        except RegistryRefused:
            self.marker()  # if there is no such Task, this says what to do
            raise
        try:
            return replace(task, records=self.ledger.read())
        except RegistryRefused as error:
            return replace(task, problem=f"triton-gateway's records cannot be read: {error.message}")

    def model(self, model_id: str) -> ModelRecord:
        """Return one model."""
        return self._record(self.model_fields(model_id))

    def _record(self, model: Mapping[str, Any]) -> ModelRecord:
        found = model_record(model)
        return replace(found, link=self.link("model", found.project, found.id))

    def model_fields(self, model_id: str) -> Mapping[str, Any]:
        """Return one model's fields."""
        model: Mapping[str, Any] = self.call("models", "get_by_id", {"model": model_id})["model"]
        return model

    def models_at(self, uris: Collection[str]) -> Sequence[ModelRecord]:
        """See ``RegistryWriter.models_at``."""
        return list(self._models_with("uri", uris))

    def records(self, model_ids: Collection[str]) -> Mapping[str, ModelRecord]:
        """Return the models that exist among these, a few hundred per call."""
        return {one.id: one for one in self._models_with("id", model_ids)}

    def _models_with(self, field: str, values: Collection[str]) -> Iterator[ModelRecord]:
        """Yield the models that have one of these values in a field."""
        asked = sorted(set(values))
        for start in range(0, len(asked), models.PAGE):
            for page in models.pages(
                self.call, {field: asked[start : start + models.PAGE], "only_fields": list(MODEL_FIELDS)}
            ):
                yield from map(self._record, page)

    def download(self, uri: str, folder: Path) -> Path:
        """See ``Registry.download``."""
        return self._files.download(uri, folder)

    def parts(self, uri: str) -> Parts | None:
        """See ``Registry.parts``."""
        return self._files.parts(uri)

    def task_of(self, task_id: str) -> Mapping[str, Any]:
        """Return any Task."""
        task: Mapping[str, Any] = self.call("tasks", "get_by_id", {"task": task_id})["task"]
        return task

    def project_name(self, project_id: str) -> str:
        """Return a project's name."""
        return str(self.call("projects", "get_by_id", {"project": project_id})["project"].get("name") or "")

    def lineage(self, model_id: str) -> Mapping[str, Any]:
        """See ``Registry.lineage``."""
        return lineage_of(self, model_id)

    @cached_property
    def _web_application(self) -> tuple[str, str]:
        """Its address, which is empty if it cannot be told from that of the API, and what it calls Tasks."""
        session = self.session
        try:
            base = str(session.get_app_server_host() or session.host).rstrip("/")
        except ValueError:
            base = ""
        return base, "tasks" if session.check_min_api_server_version("2.31") else "experiments"

    def link(self, kind: str, project_id: str, object_id: str) -> str:
        """Return the address of a ``task`` or a ``model`` in the web application; empty if it is unknown."""
        base, tasks = self._web_application
        if not base:
            return ""
        part = f"models/{object_id}/general" if kind == "model" else f"{tasks}/{object_id}/execution"
        return f"{base}/projects/{project_id or '*'}/{part}"

    @property
    def server(self) -> str:
        """Address of the ClearML API server. Raises ``RegistryRefused`` and ``RegistryUnavailable``."""
        return str(self.session.host)

    def followed(self) -> str:
        """Return the id of the serving Task that is followed.

        Raises ``RegistryRefused``, with the candidates' names, if no id was given and there is not exactly one.
        """
        if not self._task_id:
            fields = ["id", "name", "status", "status_reason", "status_message", "system_tags"]
            asked = {"type": ["service"], "system_tags": [following.TAG], "only_fields": fields, "search_hidden": True}
            task = following.choose(self.call("tasks", "get_all", asked)["tasks"])
            self._task_id = str(task["id"])
            self._say(f"following {task.get('name')!r} ({self._task_id}), the only serving Task that runs")
        return self._task_id

    def spec(self) -> ServingSpec:
        """See ``RegistryWriter.spec``."""
        return decode(self.task())

    def find_models(self, query: ModelQuery) -> Sequence[str]:
        """See ``RegistryWriter.find_models``."""
        return models.find(self.call, query)

    def write(self, sections: Mapping[str, str], records: Sequence[Record] = ()) -> None:
        """See ``RegistryWriter.write``; the sections of one call change together, and so do the records."""
        self.ledger.write(records)
        if not sections:
            return
        items = [{"name": name, "value": text} for name, text in sections.items()]
        answer = self.call(
            "tasks", "edit_configuration", {"task": self.followed(), "configuration": items, "force": True}
        )
        if not answer.get("updated"):
            raise RegistryRefused("the ClearML server did not take the change of the serving Task")

    def attach(self, key: str, path: Path) -> None:
        """See ``RegistryWriter.attach``."""
        from gateway.registry.clearml.upload import attach  # imports the whole SDK

        attach(self.followed(), key, path)

    def stock_containers(self) -> Sequence[str]:
        """See ``RegistryWriter.stock_containers``; each container pings a Task of its own twice a minute."""
        task = self.call("tasks", "get_by_id", {"task": self.followed()})["task"]
        since = datetime.now(UTC) - timedelta(seconds=_SILENCE_S)
        body = {
            "type": ["inference"], "status": ["in_progress"], "search_hidden": True,
            "name": models.exactly(f"{task.get('name')} - serve instance"), "only_fields": ["id", "last_update"],
        }  # fmt: skip
        found = self.call("tasks", "get_all", body)["tasks"]
        return [str(one["id"]) for one in found if _time_of(one.get("last_update")) >= since]

    def user_name(self, user_id: str) -> str:
        """See ``RegistryWriter.user_name``."""
        try:
            user = self.call("users", "get_by_id", {"user": user_id})["user"]
        except RegistryRefused:  # the server's own user, or a server without users: the embedded one
            return user_id
        return str(user.get("name") or user_id)

    def report_endpoint(self, report: Mapping[str, Any]) -> None:
        """See ``RegistryWriter.report_endpoint``; the server lists an endpoint for ten minutes after a report."""
        self.call("serving", "container_status_report", report, version="2.31")

    def register(self, upload: Upload) -> str:
        """See ``RegistryWriter.register``."""
        from gateway.registry.clearml.upload import register  # imports the whole SDK

        return register(upload, self.task_of(self.followed()), self)


def _time_of(text: object) -> datetime:
    try:
        return datetime.fromisoformat(str(text)).astimezone(UTC)
    except ValueError:
        return datetime.max.replace(tzinfo=UTC)  # unknown: assume that the container is alive

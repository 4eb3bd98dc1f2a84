"""The ClearML adapter of the registry port: the only file of the gateway that imports ``clearml``.

Uses the SDK's API session (credentials, tokens, ``clearml.conf`` and ``CLEARML_*`` variables as every ClearML program
reads them) but bounds what the SDK does not: by default the SDK retries an unreachable server 240 times in silence and
waits for ever on a 503 (recorded in the project's notes on ClearML's API), which would look like a hang here.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import os
import re
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal
from urllib.parse import quote, unquote, urlsplit

import requests

from gateway.errors import GatewayError, RegistryRefused, RegistryUnavailable
from gateway.registry import following
from gateway.registry.ledger import ClearMLLedger, Ledger, with_records
from gateway.spec import MODEL_FIELDS

_log = logging.getLogger("triton_gateway.registry")

_CHUNK = 1 << 20
_CONNECT_S, _READ_S = 5.0, 20.0
_SIZE_S = 2.0
_PAGE = 500


class ClearMLRegistry:
    """Reads one serving Task, its models and files from a ClearML server (real or embedded).

    ``task_id`` may be empty if there is one serving Task only; which one that is, is found once and told to ``say``
    (the log, unless given). ``files_rewrite`` maps address prefixes as uploaders wrote them to prefixes reachable from
    here, e.g. ``{"http://localhost:8081": "http://fileserver:8081"}``. ``clock`` counts seconds.
    """

    def __init__(
        self,
        task_id: str = "",
        *,
        files_rewrite: Mapping[str, str] | None = None,
        say: Callable[[str], None] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._task_id = task_id
        self._files_rewrite = dict(files_rewrite or {})
        self._say = say or (lambda text: _log.info("%s", text))
        self._session: Any = None
        self._lock = threading.Lock()
        self._ledger = ClearMLLedger(self)
        self._heartbeat = following.Heartbeat(clock)
        self._complaint = ""

    @property
    def ledger(self) -> Ledger:
        """See ``Registry.ledger``."""
        return self._ledger

    def marker(self) -> str:
        """Return when the Task and our records of it last changed; costs two small calls.

        Whoever looks again and again follows the Task, and says so to the server in time: see ``following``.
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
        with contextlib.suppress(RegistryRefused):  # told where they are read
            of_records = self.ledger.marker()
        return f"{tasks[0].get('last_change')}/{tasks[0].get('last_update')} {of_records}"

    def _tell(self, what: Literal["", "ping", "reopen"]) -> None:
        """Let the server know that the Task is in use; a server that does not want to know it costs nothing else."""
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
            if str(error) != self._complaint:
                _log.warning("ClearML cannot be told that the serving Task %s is in use: %s", self._task_id, error)
            self._complaint = str(error)

    def task(self) -> Mapping[str, Any]:
        """Return the serving Task with our records of it."""
        return with_records(self.call("tasks", "get_by_id", {"task": self.followed()})["task"], self.ledger)

    def model(self, model_id: str) -> Mapping[str, Any]:
        """Return one model."""
        model: Mapping[str, Any] = self.call("models", "get_by_id", {"model": model_id})["model"]
        return model

    def models_at(self, uris: Collection[str]) -> Sequence[Mapping[str, Any]]:
        """See ``Registry.models_at``."""
        found: list[Mapping[str, Any]] = []
        asked = sorted(set(uris))
        for start in range(0, len(asked), _PAGE // 2):
            body = {"uri": asked[start : start + _PAGE // 2], "only_fields": ["id", "name", "uri"], "page_size": _PAGE}
            page = 0
            while True:
                models = self.call("models", "get_all", {**body, "page": page})["models"]
                found += models
                if len(models) < _PAGE:
                    break
                page += 1
        return found

    def records(self, model_ids: Collection[str]) -> Mapping[str, Mapping[str, Any]]:
        """Return those of these models that exist, a few hundred per call."""
        found: dict[str, Mapping[str, Any]] = {}
        asked = sorted(set(model_ids))
        for start in range(0, len(asked), _PAGE):
            body = {
                "id": asked[start : start + _PAGE],
                "only_fields": list(MODEL_FIELDS),
                "page": 0,
                "page_size": _PAGE,
            }
            found |= {str(one["id"]): one for one in self.call("models", "get_all", body)["models"]}
        return found

    def download(self, uri: str, folder: Path) -> Path:
        """Fetch ``uri`` into ``folder``; http(s) directly with ClearML's token, everything else through the SDK."""
        address = self._rewrite(uri)
        target = folder / (unquote(urlsplit(address).path.rsplit("/", 1)[-1]) or "file")
        scheme = urlsplit(address).scheme
        if scheme in ("http", "https"):
            self._fetch_http(address, target)
            return target
        if scheme in ("", "file"):
            source = Path(unquote(urlsplit(address).path))
            if not source.is_file():
                raise RegistryRefused(
                    f"{uri} is not a file on this machine",
                    hint="upload the model to the file server (clearml-serving model upload --path …)",
                )
            _copy(source, target)
            return target
        return self._fetch_storage(address, target)

    def task_of(self, task_id: str) -> Mapping[str, Any]:
        """Return any Task."""
        task: Mapping[str, Any] = self.call("tasks", "get_by_id", {"task": task_id})["task"]
        return task

    def children_of(self, task_id: str) -> Sequence[Mapping[str, Any]]:
        """Return the Tasks whose parent is this one, oldest first, a hundred at most."""
        fields = ["id", "name", "type", "status", "project"]
        asked = {"parent": task_id, "only_fields": fields, "order_by": ["created"], "page": 0, "page_size": 100,
                 "search_hidden": True}  # fmt: skip
        found: Sequence[Mapping[str, Any]] = self.call("tasks", "get_all", asked)["tasks"]
        return found

    def project_name(self, project_id: str) -> str:
        """Return a project's name."""
        return str(self.call("projects", "get_by_id", {"project": project_id})["project"].get("name") or "")

    def link(self, kind: str, project_id: str, object_id: str) -> str:
        """Return where the web application shows a ``task`` or a ``model``."""
        session = self._connected()
        base = str(session.get_app_server_host() or session.host).rstrip("/")
        tasks = "tasks" if session.check_min_api_server_version("2.31") else "experiments"
        part = f"models/{object_id}/general" if kind == "model" else f"{tasks}/{object_id}/execution"
        return f"{base}/projects/{project_id or '*'}/{part}"

    def _rewrite(self, uri: str) -> str:
        for prefix, replacement in self._files_rewrite.items():
            if uri.startswith(prefix):
                return replacement + uri[len(prefix) :]
        return uri

    def followed(self) -> str:
        """Return the id of the serving Task that is followed.

        Raises ``RegistryRefused``, with their names, if no id was given and there is not exactly one.
        """
        if not self._task_id:
            fields = ["id", "name", "status", "status_reason", "status_message", "system_tags"]
            asked = {"type": ["service"], "system_tags": [following.TAG], "only_fields": fields, "search_hidden": True}
            task = following.choose(self.call("tasks", "get_all", asked)["tasks"])
            self._task_id = str(task["id"])
            self._say(f"following {task.get('name')!r} ({self._task_id}), the only serving Task that runs")
        return self._task_id

    def call(self, service: str, action: str, body: Mapping[str, Any]) -> dict[str, Any]:
        """Send one API call and return its ``data``; what reading the serving Task does not cover goes through here.

        Raises ``RegistryUnavailable`` and ``RegistryRefused`` as every method of the port does.
        """
        session = self._connected()
        try:
            reply = session.send_request(service=service, action=action, version="2.23", method="get", json=dict(body))
        except _SDK_NETWORK_ERRORS as error:
            raise _translate(error) from error
        except Exception as error:
            if type(error).__name__ == "LoginError":
                raise _translate(error) from error
            raise
        return self._checked(reply, f"{service}.{action}")

    def report(self, events: Sequence[Mapping[str, Any]]) -> None:
        """Add events (scalars, log lines) to the Tasks they name, as the SDK's own reporting does; empty: nothing.

        Raises ``RegistryUnavailable`` and ``RegistryRefused``.
        """
        session = self._connected()
        try:
            replies = session.send_request_batch(
                service="events", action="add_batch", version="2.23", json=[dict(event) for event in events]
            )
        except _SDK_NETWORK_ERRORS as error:
            raise _translate(error) from error
        for reply in replies or ():
            self._checked(reply, "events.add_batch")

    def _checked(self, reply: Any, what: str) -> dict[str, Any]:
        session = self._connected()
        try:
            answer = reply.json()
            meta, data = answer["meta"], answer["data"]
        except (ValueError, KeyError, TypeError) as error:
            raise RegistryUnavailable(
                f"{session.host} does not answer as a ClearML API server (HTTP {reply.status_code})",
                hint="check CLEARML_API_HOST: it must be the API server, not the web or file server",
            ) from error
        if reply.status_code == requests.codes.ok:
            result: dict[str, Any] = data
            return result
        message = f"{what}: {meta.get('result_msg')}"
        if reply.status_code >= 500:
            raise RegistryUnavailable(message)
        raise RegistryRefused(message)

    def _connected(self) -> Any:
        with self._lock:
            if self._session is None:
                self._session = _open_session()
            return self._session

    def size(self, uri: str) -> int | None:
        """Return how many bytes lie at ``uri``; 0 if nothing does, None if nobody can say it within seconds."""
        address = self._rewrite(uri)
        if urlsplit(address).scheme not in ("http", "https"):
            return None
        url, headers = self._request(address)
        try:
            reply = requests.head(url, headers=headers, timeout=_SIZE_S, allow_redirects=True)
        except requests.RequestException:
            return None
        if reply.status_code in (404, 410):
            return 0
        length = reply.headers.get("Content-Length", "") if reply.status_code == requests.codes.ok else ""
        return int(length) if length.isdecimal() and "Content-Encoding" not in reply.headers else None

    def _request(self, address: str) -> tuple[str, dict[str, str]]:
        """Return the url to ask for a file's address, and the headers that this needs."""
        session = self._connected()
        headers: dict[str, str] = {}
        files_host = str(session.get_files_server_host() or "").rstrip("/")
        if address.startswith((files_host + "/", session.host.rstrip("/") + "/")):
            headers = session.add_auth_headers(headers)
        # '#' and '?' stay raw in addresses the SDK stores; both belong to the file name there.
        raw = (
            address.replace("#", "%23").replace("?", "%3F")
            if files_host and address.startswith(files_host)
            else address
        )
        return quote(raw, safe="/:%?#=&+,;@!$'()*[]~"), headers

    def _fetch_http(self, address: str, target: Path) -> None:
        url, headers = self._request(address)
        try:
            with requests.get(url, headers=headers, stream=True, timeout=(_CONNECT_S, _READ_S)) as reply:
                if reply.status_code in (401, 403, 404, 410):
                    raise RegistryRefused(f"the file store answers {reply.status_code} for {address}")
                if reply.status_code != requests.codes.ok:
                    raise RegistryUnavailable(f"the file store answers {reply.status_code} for {address}")
                expected = reply.headers.get("Content-Length")
                with target.open("wb") as out:
                    for chunk in reply.iter_content(_CHUNK):
                        out.write(chunk)
                    out.flush()
                    os.fsync(out.fileno())
        except requests.RequestException as error:
            raise RegistryUnavailable(f"downloading {address} failed: {_reason(error)}") from error
        size = target.stat().st_size
        if expected is not None and "Content-Encoding" not in reply.headers and size != int(expected):
            raise RegistryUnavailable(f"downloading {address} stopped after {size} of {expected} bytes")

    def _fetch_storage(self, address: str, target: Path) -> Path:
        from clearml import StorageManager

        try:
            found = StorageManager.get_local_copy(remote_url=address, extract_archive=False, force_download=True)
        except Exception as error:
            raise RegistryUnavailable(f"downloading {address} failed: {_reason(error)}") from error
        if not found:
            raise RegistryUnavailable(
                f"downloading {address} failed", hint="check the storage credentials in clearml.conf"
            )
        _copy(Path(found), target)
        return target


_SDK_NETWORK_ERRORS = (requests.RequestException, OSError)


def _open_session() -> Any:
    # The SDK is imported here: it reads configuration and takes a second, and a gateway that boots from its last-good
    # state must not depend on either.
    from clearml.backend_api.session import Session
    from clearml.backend_api.session.defs import MissingConfigError
    from clearml.config import ConfigWrapper

    class BoundedSession(Session):  # type: ignore[misc]
        _session_timeout = (_CONNECT_S, _READ_S)
        _session_initial_timeout = (_CONNECT_S, _READ_S)

    try:
        _read_configuration(ConfigWrapper)
        return BoundedSession(
            http_retries_config={"total": 1, "connect": 1, "read": 1, "redirect": 3, "backoff_factor": 0.2},
        )
    except MissingConfigError as error:
        raise RegistryRefused(
            "no ClearML credentials found",
            hint="set CLEARML_API_HOST, CLEARML_API_ACCESS_KEY and CLEARML_API_SECRET_KEY, or run `clearml-init`",
        ) from error
    except _SDK_NETWORK_ERRORS as error:
        raise _translate(error) from error
    except Exception as error:
        if type(error).__name__ in ("LoginError", "ValueError", "ConfigurationError"):
            raise _translate(error) from error
        raise


@functools.cache
def _read_configuration(wrapper: Any) -> None:
    # Once: the SDK reads and parses every file anew, a third of a second of CPU that a gateway whose registry is away
    # would spend at each attempt. Without the override the SDK repeats a 503 for ever.
    wrapper.set_overrides({"api": {"http": {"wait_on_maintenance_forever": False}}})


def _translate(error: BaseException) -> RegistryUnavailable | RegistryRefused:
    text = _reason(error)
    if "error 401" in text or "error 403" in text:
        return RegistryRefused(
            f"ClearML refuses the credentials: {text}",
            hint="check CLEARML_API_ACCESS_KEY and CLEARML_API_SECRET_KEY",
        )
    return RegistryUnavailable(
        f"the ClearML API does not answer: {text}", hint="check CLEARML_API_HOST and that the server is up"
    )


def _reason(error: BaseException) -> str:
    text = (str(error).splitlines() or [type(error).__name__])[0]
    # requests and urllib3 wrap the operating system's word several times over; that word is what a person needs.
    system = re.search(r"\[Errno -?\d+\] ([\w ]+)", text)
    address = re.search(r"host='([^']+)', port=(\d+)", text)
    if system and address:
        return f"{address[1]}:{address[2]}: {system[1]}"
    return text[:300]


def _copy(source: Path, target: Path) -> None:
    with source.open("rb") as read, target.open("wb") as out:
        while chunk := read.read(_CHUNK):
            out.write(chunk)
        out.flush()
        os.fsync(out.fileno())

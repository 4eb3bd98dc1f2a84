"""Uploads to ClearML: a folder as a published model, and code as an artifact of the serving Task.

A model's files come first, at an address that names their content, then the model with all that is told of it. Other
than the SDK's ``OutputModel``, which creates a model without a name, uploads, and completes it, this leaves no
half-made model, whenever it is stopped. A model that has the same name and the same files already is used again.
``registry`` calls it.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import shutil
import stat
import sys
import tempfile
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from gateway.errors import RegistryUnavailable
from gateway.file_names import file_name
from gateway.registry.clearml.models import Call, exactly
from gateway.registry.clearml.session import Api, reason_of
from gateway.registry.port import Upload

_TIME: Final = (1980, 1, 1, 0, 0, 0)
_CHUNK: Final = 1 << 20
_ROOM: Final = "is there room on the file server, and may these credentials write there?"


def register(upload: Upload, serving: Mapping[str, Any], api: Api) -> str:
    """See ``RegistryWriter.register``. ``serving`` is the serving Task."""
    call = api.call
    with tempfile.TemporaryDirectory(dir=upload.scratch) as folder:
        packed = pack(upload.folder, Path(folder), upload.name)
        destination = _destination(serving, api)
        place = f"{destination}/{'/'.join(map(_part, upload.project.split('/')))}/models/{_part(packed.name)}"
        address = _address(place)
        same = {"uri": [address], "name": exactly(upload.name), "ready": True, "system_tags": ["-archived"],
                "order_by": ["-created"], "only_fields": ["id"], "page": 0, "page_size": 1}  # fmt: skip
        if known := call("models", "get_all", same)["models"]:
            return str(known[0]["id"])
        with _reporting_errors(f"{upload.name} cannot be uploaded to {destination}"):
            from clearml import StorageManager

            StorageManager.upload_file(str(packed), place)
    fields = {
        "name": upload.name, "uri": address, "project": _project(call, upload.project),
        "task": upload.task or str(serving["id"]), "framework": upload.framework,
        "tags": list(upload.tags), "system_tags": ["package"], "comment": upload.comment, "public": False,
        "ready": True,
    }  # fmt: skip
    return str(call("models", "create", fields)["id"])


def pack(folder: Path, into: Path, name: str) -> Path:
    """Write the files of ``folder`` to a zip in the folder ``into``; return its path, ``NAME-HASH.zip``.

    The bytes depend on the names and contents of the files alone, and the name on the bytes: a file server keeps one
    file per name, so this one can only be replaced by itself. Raises ``OSError`` if the disk is full.
    """
    aside = into / "packing.zip"
    # Not compressed: weights hardly shrink, and gateways read single files of it.
    with zipfile.ZipFile(aside, "w", zipfile.ZIP_STORED) as packed:
        for path in sorted(folder.rglob("*")):
            if path.is_file():
                entry = zipfile.ZipInfo(path.relative_to(folder).as_posix(), _TIME)
                entry.external_attr = (stat.S_IFREG | 0o644) << 16
                entry.file_size = path.stat().st_size
                with path.open("rb") as source, packed.open(entry, "w") as target:
                    shutil.copyfileobj(source, target, _CHUNK)
    with aside.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    return aside.rename(into / file_name(f"{name}-{digest[:16]}.zip"))


def attach(task_id: str, key: str, path: Path) -> None:
    """See ``RegistryWriter.attach``."""
    with _reporting_errors(f"{key} cannot be attached"):
        from clearml import Task

        task = Task.get_task(task_id=task_id)
        if not task.upload_artifact(name=key, artifact_object=path, wait_on_upload=True):
            raise RegistryUnavailable("the upload failed")


@contextlib.contextmanager
def _reporting_errors(what: str) -> Iterator[None]:
    """Translate the SDK's exceptions, of any type. Standard output is kept for our own commands: programs read it."""
    try:
        with contextlib.redirect_stdout(sys.stderr):
            yield
    except Exception as error:
        raise RegistryUnavailable(f"{what}: {reason_of(error)}", hint=_ROOM) from error


def _destination(serving: Mapping[str, Any], api: Api) -> str:
    """Return where files go: as the serving Task says, or else the SDK's configuration, or else the file server."""
    from clearml.config import config

    chosen = (serving.get("output") or {}).get("destination") or os.environ.get("CLEARML_DEFAULT_OUTPUT_URI")
    chosen = chosen or config.get("development.default_output_uri", "") or api.session.get_files_server_host()
    return str(chosen).rstrip("/")


def _part(text: str) -> str:
    """Return a part of an address that means the same whether it is escaped or not."""
    return file_name(re.sub("[#%;]", "-", text))


def _address(place: str) -> str:
    """Return an address as the SDK writes it into a model."""
    from clearml.storage.url import quote_url

    return str(quote_url(place))


def _project(call: Call, name: str) -> str:
    """Return the id of a project, which is made if it is missing."""
    found = call("projects", "get_all", {"name": exactly(name), "only_fields": ["id", "name"]})["projects"]
    known = next((project for project in found if project.get("name") == name), None)
    return str((known or call("projects", "create", {"name": name, "description": ""}))["id"])

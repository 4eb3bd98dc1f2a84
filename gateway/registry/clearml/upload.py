"""Registers a folder as a published model: its files first, at an address that names their content, then the model.

Other than the SDK's ``OutputModel``, which creates a model without a name, uploads, and completes it, this leaves no
half-made model, whenever it is stopped. A model that has the same name and the same files already is used again.
``registry`` calls it.
"""

from __future__ import annotations

import contextlib
import re
import sys
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from gateway.errors import RegistryRefused, RegistryUnavailable
from gateway.file_names import file_name
from gateway.registry.clearml.models import Call, exactly
from gateway.registry.clearml.session import reason_of
from gateway.registry.pack import pack
from gateway.registry.port import Upload


def register(
    upload: Upload, task: Mapping[str, Any], file_server: str, call: Call, size: Callable[[str], int | None]
) -> str:
    """See ``RegistryWriter.register``. ``task`` is the serving Task; ``size`` is that of ``Files``."""
    with tempfile.TemporaryDirectory(dir=upload.scratch) as folder:
        packed = pack(upload.folder, Path(folder), upload.name)
        destination = str((task.get("output") or {}).get("destination") or file_server).rstrip("/")
        place = f"{destination}/{'/'.join(map(_part, upload.project.split('/')))}/models/{_part(packed.name)}"
        address = _address(place)
        known = _known(call, address, upload)
        if known and size(address) != 0:
            return known
        try:
            with contextlib.redirect_stdout(sys.stderr):
                _send(packed, place)
        except Exception as error:  # the SDK's, of any type
            raise RegistryUnavailable(
                f"{upload.name} cannot be uploaded to {destination}: {reason_of(error)}",
                hint="is there room on the file server, and may these credentials write there?",
            ) from error
    if known:
        return known
    fields = {
        "name": upload.name, "uri": address, "project": _project(call, upload.project), "task": str(task["id"]),
        "framework": upload.framework, "tags": list(upload.tags), "system_tags": ["package"],
        "comment": upload.comment, "public": False, "ready": True,
    }  # fmt: skip
    return str(call("models", "create", fields)["id"])


def _part(text: str) -> str:
    """Return a part of an address that means the same whether it is escaped or not."""
    return file_name(re.sub("[#%;]", "-", text))


def _address(place: str) -> str:
    """Return an address as the SDK writes it into a model."""
    from clearml.storage.url import quote_url

    return str(quote_url(place))


def _known(call: Call, address: str, upload: Upload) -> str:
    """Return the id of the published model of this name at ``address``; empty if there is none."""
    asked = {"uri": [address], "name": exactly(upload.name), "system_tags": ["-archived"], "ready": True,
             "order_by": ["-created"], "only_fields": ["id"], "page": 0, "page_size": 1}  # fmt: skip
    found = call("models", "get_all", asked)["models"]
    return str(found[0]["id"]) if found else ""


def _send(packed: Path, place: str) -> None:
    from clearml import StorageManager

    StorageManager.upload_file(str(packed), place)


def _project(call: Call, name: str) -> str:
    """Return the id of a project, which is made if it is missing."""

    def known() -> str:
        found = call("projects", "get_all", {"name": exactly(name), "only_fields": ["id", "name"]})["projects"]
        return next((str(project["id"]) for project in found if project.get("name") == name), "")

    if there := known():
        return there
    try:
        return str(call("projects", "create", {"name": name, "description": ""})["id"])
    except RegistryRefused:
        if there := known():  # somebody else has made it meanwhile
            return there
        raise

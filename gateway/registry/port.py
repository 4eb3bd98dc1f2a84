"""The registry port: all calls to ClearML that this project makes. They block, each for a bounded time.

``Registry`` is what serving needs, and all that a gateway may use. ``RegistryWriter`` adds what model sync, operators
and bundles need to change the serving Task and to publish models. There is one implementation (``registry/clearml/``),
one fake (``tests.fakes.FakeRegistry``) and one test suite over both (``test_registry_contract``). Call it from
worker threads and commands, never from the event loop.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Protocol

from gateway.registry.ledger import Ledger, Record
from gateway.spec import ModelRecord, ServingSpec, ServingTask

_ID: Final = re.compile(r"[0-9a-f]{32}")


@dataclass(frozen=True, slots=True)
class Parts:
    """A file of the registry that can be read in parts."""

    size: int
    """In bytes."""
    read: Callable[[int, int], Iterator[bytes]]
    """``read(offset, count)`` yields the bytes of a range; fewer if the connection is cut. Raises
    ``RegistryUnavailable`` if the file was replaced since the first call.
    """


class Registry(Protocol):
    """Reads the serving Task, models and files. Safe to call from several threads at once.

    Every method raises ``RegistryUnavailable`` if the server does not answer (a retry can help), and
    ``RegistryRefused`` if it refuses (wrong credentials, unknown id), both within a bounded time.
    """

    @property
    def ledger(self) -> Ledger:
        """Our records beside the serving Task."""
        ...

    @property
    def reports(self) -> Ledger:
        """What model syncs report (``registry.reports``), and who leads; no part of ``marker`` and ``task``."""
        ...

    def marker(self) -> str:
        """Return a value that changes whenever the serving Task or our records change; cheap to get."""
        ...

    def task(self) -> ServingTask:
        """Return the serving Task with our records.

        The records are read after the Task: a writer of both writes the record first, so a reader that sees the change
        also sees its record.
        """
        ...

    def model(self, model_id: str) -> ModelRecord:
        """Return one model."""
        ...

    def lineage(self, model_id: str) -> Mapping[str, Any]:
        """Return what is known of a model's origin, as JSON values: its Task, the Task's parent, code and data."""
        ...

    def records(self, model_ids: Collection[str]) -> Mapping[str, ModelRecord]:
        """Return the models that exist among these, by id, in few calls."""
        ...

    def download(self, uri: str, folder: Path) -> Path:
        """Download the file at ``uri`` into ``folder`` under its base name; return its path.

        Always fetches the current bytes, without a cache; the caller verifies hashes. ``uri`` may have any scheme that
        ClearML's storage layer reads: http(s), file, s3, gs, azure.
        """
        ...

    def parts(self, uri: str) -> Parts | None:
        """Return the file at ``uri`` for reading in parts; None if its store cannot do that."""
        ...


@dataclass(frozen=True, slots=True)
class ModelQuery:
    """A query for models: exact project and name, and any of the tags.

    Archived models and unfinished uploads never match.
    """

    project: str | None = None
    name: str | None = None
    tags: tuple[str, ...] = ()
    only_published: bool = False
    most: int | None = None
    ids: tuple[str, ...] = ()
    """Only these ids; empty: all."""


@dataclass(frozen=True, slots=True)
class Upload:
    """A folder to register as a published model."""

    folder: Path
    """The model's files, uploaded as one package."""
    project: str
    name: str
    framework: str
    tags: Sequence[str] = ()
    comment: str = ""
    task: str = ""
    """The Task that trained the model; empty: nobody knows one, and the model belongs to the serving Task."""
    scratch: Path | None = None
    """A folder with room for the package; None: the system's."""


class RegistryWriter(Registry, Protocol):
    """A registry that can also change the serving Task; same errors and time limits."""

    @property
    def history(self) -> Ledger:
        """The history of changes. It is long: gateways never read it."""
        ...

    def followed(self) -> str:
        """Return the id of the serving Task.

        Raises ``RegistryRefused``, with the candidates' names, if no id was given and there is not exactly one.
        """
        ...

    def spec(self) -> ServingSpec:
        """Return the serving Task, decoded, with our records."""
        ...

    def models_at(self, uris: Collection[str]) -> Sequence[ModelRecord]:
        """Return all models, archived ones too, at one of these addresses."""
        ...

    def find_models(self, query: ModelQuery) -> Sequence[str]:
        """Return the ids of the models that match, newest first."""
        ...

    def write(self, sections: Mapping[str, str], records: Sequence[Record] = ()) -> None:
        """Add or replace these sections of the Task's configuration (name → text), and these records.

        Other sections stay. Records are written first, so a reader that sees a changed section also sees its record.
        """
        ...

    def attach(self, key: str, path: Path) -> None:
        """Attach a file, or a folder as a zip, to the serving Task as its artifact ``key``, as ``model add`` does."""
        ...

    def stock_containers(self) -> Sequence[str]:
        """Return the ids of clearml-serving's own inference containers that serve this Task, as reported by ClearML."""
        ...

    def user_name(self, user_id: str) -> str:
        """Return the name of a user of ClearML; the id itself if the server does not tell."""
        ...

    def report(self, events: Sequence[Mapping[str, Any]]) -> None:
        """Add events (scalars, log lines) to the Tasks they name."""
        ...

    def report_endpoint(self, report: Mapping[str, Any]) -> None:
        """Tell ClearML's list of model endpoints about one: the body of its ``serving.container_status_report``."""
        ...

    def register(self, upload: Upload) -> str:
        """Upload a folder, publish it as a model, and return its id. Blocks until the upload is done.

        If a published model of this name has the same files already, its id is returned, and nothing is changed.
        """
        ...


def is_id(text: str) -> bool:
    """Whether ``text`` has the form of a registry id."""
    return _ID.fullmatch(text) is not None

"""The registry port: everything this project asks of ClearML, in blocking calls with bounds.

Two parts: ``Registry`` is what serving needs, and all that a gateway may ask for; ``RegistryWriter`` adds what model
sync, operators and bundles need to change the serving Task and to publish models. One implementation
(``registry/clearml/``), one fake (``gateway.testing.FakeRegistry``), one suite over both (``test_registry_contract``).
Called from worker threads and commands, never from the event loop.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Protocol

from gateway.registry.ledger import Ledger, Record
from gateway.spec import ServingSpec

_ID: Final = re.compile(r"[0-9a-f]{32}")


@dataclass(frozen=True, slots=True)
class Parts:
    """A file of the registry that can be read in parts."""

    size: int
    """In bytes."""
    read: Callable[[int, int], Iterator[bytes]]
    """Returns so many bytes (the second) from an offset (the first) on; of one and the same file at every call, else it
    raises ``RegistryUnavailable``. May give fewer, if the connection is cut.
    """


class Registry(Protocol):
    """Reads the serving Task, models and files. Safe to call from several threads at once.

    Every method raises ``RegistryUnavailable`` when nothing answers (a retry can help) and ``RegistryRefused`` when
    the answer is no (wrong credentials, unknown id), both within a bounded time.
    """

    @property
    def ledger(self) -> Ledger:
        """Our records beside the serving Task."""
        ...

    def marker(self) -> str:
        """Return a cheap value that changes whenever the serving Task or our records of it change."""
        ...

    def task(self) -> Mapping[str, Any]:
        """Return the serving Task's fields as ``tasks.get_by_id`` answers them (input of ``spec.decode``).

        Our records are added as the field ``spec.RECORDS``. They are read after the Task: who changes both writes the
        record first, so whoever sees the change sees its record.
        """
        ...

    def model(self, model_id: str) -> Mapping[str, Any]:
        """Return one model's fields as ``models.get_by_id`` answers them (input of ``spec.decode_model``)."""
        ...

    def records(self, model_ids: Collection[str]) -> Mapping[str, Mapping[str, Any]]:
        """Return those of these models that exist by id, in few calls: at least what ``spec.MODEL_FIELDS`` names."""
        ...

    def models_at(self, uris: Collection[str]) -> Sequence[Mapping[str, Any]]:
        """Return ``id``, ``name`` and ``uri`` of every model, archived or not, whose address is one of these."""
        ...

    def download(self, uri: str, folder: Path) -> Path:
        """Store the file behind ``uri`` in ``folder``, keeping its base name, and return its path.

        Always fetches the current bytes (no cache by address); the caller verifies hashes. ``uri`` may be anything
        the ClearML storage layer reads: http(s), file, s3, gs, azure.
        """
        ...

    def parts(self, uri: str) -> Parts | None:
        """Return the file behind ``uri`` for reading in parts; None if its store gives it as a whole only."""
        ...


@dataclass(frozen=True, slots=True)
class ModelQuery:
    """Which models of the registry: exact names, any of the tags.

    Archived ones and unfinished uploads never count; with a limit (``most``) neither do those that hold nothing.
    """

    project: str | None = None
    name: str | None = None
    tags: tuple[str, ...] = ()
    only_published: bool = False
    most: int | None = None
    ids: tuple[str, ...] = ()
    """Of these only; empty: of all."""
    served: tuple[str, ...] = ()
    """Those in service: they count whatever became of their files."""


@dataclass(frozen=True, slots=True)
class Publication:
    """A bundle as it is registered: a Task that says how it was made, and a published model."""

    folder: Path
    """Its files are the model's, as one package."""
    project: str
    name: str
    source: str
    """Where its weights came from: the id of a model in the registry, or any address."""
    tags: Sequence[str] = ()
    model_tags: Sequence[str] = ()
    source_tags: Sequence[str] = ()
    arguments: Mapping[str, str] = field(default_factory=dict)
    manifest: Mapping[str, Any] = field(default_factory=dict)
    metadata: Mapping[str, str] = field(default_factory=dict)
    """The model's own, read by whoever serves it."""
    numbers: Mapping[str, float] = field(default_factory=dict)
    tables: Mapping[str, Sequence[Sequence[str]]] = field(default_factory=dict)
    """Shown with the model: title → rows, the header first."""
    picture: Path | None = None
    text: str = ""


@dataclass(frozen=True, slots=True)
class Published:
    """The ids of what was made."""

    task_id: str
    model_id: str


class RegistryWriter(Registry, Protocol):
    """Also changes the serving Task, and asks for more than serving needs. The same errors, the same bounds."""

    @property
    def history(self) -> Ledger:
        """The record of who changed what, apart from what gateways read."""
        ...

    def followed(self) -> str:
        """Return the id of the serving Task.

        Raises ``RegistryRefused``, with their names, if no id was given and there is not exactly one.
        """
        ...

    def spec(self) -> ServingSpec:
        """Return what the serving Task says now, decoded, with our records of it."""
        ...

    def find_models(self, query: ModelQuery) -> Sequence[str]:
        """Return the ids of the models that match, newest first."""
        ...

    def write(self, sections: Mapping[str, str], records: Sequence[Record] = ()) -> None:
        """Add or replace these sections of the Task's configuration (name → text), and these of our records.

        The others stay. Records are written first: who sees a section that was changed sees the record about it.
        """
        ...

    def attach(self, key: str, path: Path) -> None:
        """Attach a file, or a folder as a zip, to the serving Task as its artifact ``key``, as ``model add`` does."""
        ...

    def stock_containers(self) -> Sequence[str]:
        """Return the ids of clearml-serving's own inference containers that serve this Task now, by its account."""
        ...

    def report(self, events: Sequence[Mapping[str, Any]]) -> None:
        """Add events (scalars, log lines) to the Tasks they name."""
        ...

    def publish(self, publication: Publication) -> Published:
        """Upload a bundle and publish it as a model. Takes as long as the upload does."""
        ...


def section_text(task: Mapping[str, Any], name: str) -> str:
    """Return the text of one configuration section of a Task; empty when there is none."""
    item = (task.get("configuration") or {}).get(name) or {}
    return str(item.get("value") or "") if isinstance(item, Mapping) else ""


def is_id(text: str) -> bool:
    """Say whether ``text`` has the form of an id in the registry."""
    return _ID.fullmatch(text) is not None

"""The state of a serving Task as a document: made from a Task, written as a file, and read from one.

For ``export``, ``diff`` and ``apply``; ``state_changes`` compares two documents. A document has what people decide:
entries with the fields that the serving Task has (``history/changes``); the code that these name; the numbers that
auto-update has given; defaults, objectives. Models are named by id and, for use on another server, by project and name.
"""

from __future__ import annotations

import functools
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, Final, Literal, Protocol

import yaml
from pydantic import AfterValidator, BaseModel, Field, StrictStr, ValidationError

from deploy.cli import objective
from deploy.controller.history.changes import NAMED, SECTIONS, entries, said
from deploy.tools.errors import DeployError
from gateway import objectives, registry, spec
from gateway.file_names import path_within

KINDS: Final = ("code", *SECTIONS, "versions", "defaults", "objectives")
"""Parts of a document that are compared; each one needs only those before it."""
_HINT: Final = "`triton-gateway export` writes such a file"

Document = dict[str, dict[str, Any]]
"""Kind → name → fields. A default is a url, a version the id of its model, a code its files; ``models``: id → names."""


class _Model(BaseModel, extra="forbid"):
    """How a model is called, wherever it has another id."""

    name: StrictStr
    project: StrictStr = ""


def _name(text: str) -> str:
    if not (name := text.strip("/ ")):
        raise ValueError("a name is empty")
    return name


def _file(text: str) -> str:
    return str(path_within(text))


_Names = Annotated[StrictStr, AfterValidator(_name)]
_Section = dict[_Names, dict[StrictStr, Any]]
_Code = Annotated[dict[Annotated[StrictStr, AfterValidator(_file)], StrictStr], Field(min_length=1)]
_Artifact = Annotated[StrictStr, Field(pattern=r"^\w[^/\\]*$")]
_Version = Annotated[_Names, Field(pattern=r"^.+/\d+$")]


class _State(BaseModel, extra="forbid"):
    """A file."""

    version: Literal[1] = 1
    endpoints: _Section = {}
    auto_update: _Section = {}
    canaries: _Section = {}
    metrics: _Section = {}
    versions: dict[_Version, StrictStr] = {}
    models: dict[StrictStr, _Model] = {}
    code: dict[_Artifact, _Code] = {}
    defaults: dict[_Names, _Names] = {}
    objectives: _Section = {}


class Store(registry.RegistryWriter, Protocol):
    """A registry that also knows the names of projects."""

    def project_name(self, project_id: str) -> str:
        """Return a project's name."""
        ...


def document_of(store: Store, task: spec.ServingTask) -> Document:
    """Return the document of ``task``. Raises ``DeployError`` if the Task cannot be read completely."""
    found: Document = {kind: entries(task, kind) for kind in SECTIONS}
    serving = spec.decode(task)
    coded = [*found["endpoints"].values(), *found["auto_update"].values()]
    artifacts = {str(fields["preprocess_artifact"]) for fields in coded if "preprocess_artifact" in fields}
    found["code"] = {key: _code(store, task.artifacts[key], key) for key in sorted(artifacts & {*task.artifacts})}
    found["versions"] = {
        one.url: one.model_id for one in serving.endpoints.values()
        if one.is_auto and one.model_id and one.endpoint in found["auto_update"]
    }  # fmt: skip
    found["defaults"] = dict(sorted(serving.defaults.items()))
    found["objectives"] = {
        name: dict(parts) for name, stored in sorted(spec.records_of(task, spec.OBJECTIVES).items())
        if (parts := objectives.parts(stored))
    }  # fmt: skip
    project = functools.cache(store.project_name)
    used = {holder[key] for _, holder, key in models_of(found)}
    found["models"] = {
        one.id: said({"name": one.name, "project": project(one.project) if one.project else ""})
        for one in (store.records(used).values() if used else ())
    }  # fmt: skip
    return found


def written(document: Document, title: str) -> str:
    """Return a document as YAML for people: code as blocks of text, without empty parts."""
    shown = {"version": 1, **{kind: document[kind] for kind in (*KINDS[1:], "models", "code") if document[kind]}}
    text: str = yaml.dump(shown, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=120)
    return f"# {' '.join(title.split())}\n{text}"


def parsed(text: str, name: str) -> Document:
    """Return the document in the text of a file (YAML or JSON). Raises ``DeployError``, which names the wrong part."""
    try:
        raw = yaml.safe_load(text)
    except (yaml.YAMLError, RecursionError) as error:
        raise DeployError(f"{name} is not valid YAML: {' '.join(str(error).split())[:200]}", hint=_HINT) from None
    if not isinstance(raw, dict) or raw.get("version") != 1:
        raise DeployError(f"{name} is not the state of a serving Task: it has no `version: 1`", hint=_HINT)
    try:
        document: Document = _State.model_validate(raw).model_dump(exclude={"version"})
    except ValidationError as error:
        first = error.errors()[0]
        raise DeployError(f"{name}: {' '.join(map(str, first['loc']))}: {first['msg']}", hint=_HINT) from None
    for kind in SECTIONS:
        document[kind] = {key: said(fields) for key, fields in document[kind].items()}
    for key, fields in document["endpoints"].items():
        if "version" in fields and not key.endswith(f"/{fields['version']}"):
            raise DeployError(f"{name}: endpoint {key} must be named after its version: …/{fields['version']}")
    for key, fields in document["objectives"].items():
        where = f"objective {key} of {name}"
        if unknown := [part for part in fields if part not in objectives.PARTS]:
            raise DeployError(f"{where} has an unknown part {unknown[0]}", hint=f"parts: {', '.join(objectives.PARTS)}")
        document["objectives"][key] = objective.checked({part: str(value) for part, value in fields.items()}, where)
    return document


def models_of(document: Document) -> Iterator[tuple[str, dict[str, Any], str]]:
    """Yield the place of each model's id in a document: the name of its entry, and what holds it under which key."""
    for kind in SECTIONS:
        for name, fields in document[kind].items():
            if "model_id" in fields:
                fields["model_id"] = str(fields["model_id"])
                yield f"{NAMED[kind]} {name}", fields, "model_id"
    for url in document["versions"]:
        yield f"version {url}", document["versions"], url


def _code(store: Store, ref: spec.ArtifactRef, key: str) -> dict[str, str]:
    """Return the files of an artifact: name → text.

    Raises ``DeployError`` if one is not text, and ``ArtifactCorrupt`` if an archive cannot be unpacked.
    """
    with tempfile.TemporaryDirectory() as download, tempfile.TemporaryDirectory() as folder:
        path = store.download(ref.uri, Path(download))
        if ref.is_archive:
            registry.unpack_archive(path, Path(folder))
        files = sorted(Path(folder).rglob("*")) if ref.is_archive else [path]
        root = Path(folder) if ref.is_archive else path.parent
        try:
            return {
                file.relative_to(root).as_posix(): file.read_bytes().decode()
                for file in files if file.is_file() and "__pycache__" not in file.parts
            }  # fmt: skip
        except UnicodeDecodeError as error:
            raise DeployError(
                f"the code {key} is not text and cannot be exported: {error}",
                hint="add this endpoint with clearml-serving",
            ) from error


class _Dumper(yaml.SafeDumper):  # type: ignore[misc]  # without types
    """Writes texts with several lines as blocks, and what occurs twice twice instead of naming it (``&id001``)."""

    def ignore_aliases(self, data: object) -> bool:  # noqa: ARG002 - the name it overrides
        """Never name a value to refer to it later: people edit the file and compare its versions."""
        return True


def _block(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style="|" if "\n" in text else None)


_Dumper.add_representer(str, _block)

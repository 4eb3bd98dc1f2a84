"""The state of a serving Task as a document: made from a Task, compared with one, and applied to one.

Used by ``export``, ``diff`` and ``apply``. A document contains what people decide: endpoints with their code,
auto-update rules with the version numbers they have assigned, canaries, metrics, defaults, objectives. Fields have
ClearML's names; empty ones are left out. Models are named by id and, for use on another server, by project and name.
"""

from __future__ import annotations

import copy
import functools
import json
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path, PurePosixPath
from typing import Annotated, Any, Final, Literal, NamedTuple, Protocol

import yaml
from pydantic import AfterValidator, BaseModel, BeforeValidator, Field, StrictStr, ValidationError

from deploy.cli import objective
from deploy.controller import default_versions
from deploy.controller.history.changes import KEY_FIELD, NAMED, SECTIONS, entries, said
from deploy.controller.history.recorder import announced
from deploy.controller.rollouts import record
from deploy.tools import folders, sections
from deploy.tools.errors import DeployError
from gateway import registry, spec, version_numbers

KINDS: Final = ("endpoints", "auto_update", "canaries", "metrics", "defaults", "objectives")
"""Parts of a document; each one needs only those before it."""
_VERSIONS: Final = "model_monitoring_eps"
_WHY: Final = "applied from a file"
_HINT: Final = "`triton-gateway export` writes such a file"
_SHOWN: Final = 80
"""Characters of a value that are shown in a line."""

Document = dict[str, dict[str, dict[str, Any]]]
"""Kind → name → fields. A default is the field ``version``."""


class _Model(BaseModel, extra="forbid"):
    """A model, by its id here, or by its name and project elsewhere."""

    id: StrictStr = ""
    name: StrictStr = ""
    project: StrictStr = ""


def _name(text: str) -> str:
    if not (name := text.strip("/ ")):
        raise ValueError("a name is empty")
    return name


def _files(code: dict[str, str]) -> dict[str, str]:
    paths: set[PurePosixPath] = set()
    for file in code:
        path = folders.path_within(file)
        if not paths.isdisjoint((path, *path.parents)) or any(path in other.parents for other in paths):
            raise ValueError(f"the code file {file} is there twice, or as a file and as a folder")
        paths.add(path)
    return code


_Names = Annotated[StrictStr, AfterValidator(_name)]
_Number = Annotated[str, BeforeValidator(str), Field(pattern=r"^\d+$")]


class _Entry(BaseModel, extra="allow"):
    """An endpoint or auto-update rule with ClearML's fields, and the model and code that they name by ids there."""

    model: _Model | None = None
    code: Annotated[dict[StrictStr, StrictStr], AfterValidator(_files)] | None = None
    versions: dict[_Number, _Model] | None = None


class _Canary(BaseModel, extra="allow"):
    weights: list[Annotated[float, Field(strict=True)]]
    load_endpoints: list[StrictStr] | None = None


class _State(BaseModel, extra="forbid"):
    """A file."""

    version: Literal[1] = 1
    endpoints: dict[_Names, _Entry] | None = None
    auto_update: dict[_Names, _Entry] | None = None
    canaries: dict[_Names, _Canary] | None = None
    metrics: dict[_Names, dict[StrictStr, Any]] | None = None
    defaults: dict[_Names, _Names] | None = None
    objectives: dict[_Names, dict[StrictStr, Any]] | None = None


class Store(registry.RegistryWriter, Protocol):
    """A registry that also knows the names of projects."""

    def project_name(self, project_id: str) -> str:
        """Return a project's name."""
        ...


Change = tuple[str, str, dict[str, Any] | None, dict[str, Any] | None]
"""Kind, name, fields now and fields then of an entry that differs. None: there is no such entry."""


# --- a Task to a document ---------------------------------------------------------------------------------------------


def document_of(store: Store, task: spec.ServingTask) -> Document:
    """Return the document of ``task``. Raises ``DeployError`` if the Task cannot be read completely."""
    found: Document = {kind: entries(task, kind) for kind in SECTIONS}
    serving = spec.decode(task)
    _resolve_stock_fields(store, task, found)
    for one in serving.endpoints.values():
        if one.is_auto and one.endpoint in found["auto_update"] and one.model_id:
            found["auto_update"][one.endpoint].setdefault("versions", {})[one.version] = {"id": one.model_id}
    _name_models(store, found)
    found["defaults"] = {name: {"version": url} for name, url in sorted(serving.defaults.items())}
    found["objectives"] = {
        name: dict(parts) for name, stored in sorted(spec.records_of(task, spec.OBJECTIVES).items())
        if (parts := spec.objective_parts(stored))
    }  # fmt: skip
    return found


def written(document: Document, title: str) -> str:
    """Return a document as YAML for people: code as blocks of text, without empty parts."""
    defaults = {name: fields["version"] for name, fields in document["defaults"].items()}
    shown = {"version": 1, **{kind: part for kind in KINDS if (part := {**document, "defaults": defaults}[kind])}}
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
        found = _State.model_validate(raw).model_dump(exclude_unset=True)
    except ValidationError as error:
        first = error.errors()[0]
        raise DeployError(f"{name}: {' '.join(map(str, first['loc']))}: {first['msg']}", hint=_HINT) from None
    document: Document = {kind: found.get(kind) or {} for kind in KINDS}
    document["defaults"] = {key: {"version": url} for key, url in (found.get("defaults") or {}).items()}
    for kind in KINDS:
        document[kind] = {key: said(fields) for key, fields in document[kind].items()}
    for key, fields in document["endpoints"].items():
        if "version" in fields and not key.endswith(f"/{fields['version']}"):
            raise DeployError(f"{name}: endpoint {key} must be named after its version: …/{fields['version']}")
    for key, fields in document["canaries"].items():
        if "load_endpoints" in fields and len(fields["load_endpoints"]) != len(fields["weights"]):
            raise DeployError(f"{name}: canary {key} must have as many load_endpoints as weights")
    for key, fields in document["objectives"].items():
        where = f"objective {key} of {name}"
        if unknown := [part for part in fields if part not in spec.OBJECTIVE]:
            raise DeployError(f"{where} has an unknown part {unknown[0]}", hint=f"parts: {', '.join(spec.OBJECTIVE)}")
        document["objectives"][key] = objective.checked({part: str(value) for part, value in fields.items()}, where)
    return document


# --- two documents to changes -----------------------------------------------------------------------------------------


def resolved(store: Store, document: Document) -> Document:
    """Return ``document`` with the model ids of this registry. Raises ``DeployError`` for a model that it lacks."""
    found = copy.deepcopy(document)
    places = [*_places(found)]
    wanted = {holder[key].get("id", "") for _, holder, key in places} - {""}
    known = store.records(wanted) if wanted else {}
    for where, holder, key in places:
        model_id, name, project = (str(holder[key].get(part, "")) for part in ("id", "name", "project"))
        ids: Sequence[str] = [model_id] if model_id in known else []
        if name and not ids:
            ids = store.find_models(registry.ModelQuery(project=project or None, name=name))
        called = f"{project}/{name}" if project else name or model_id
        if not ids:
            raise DeployError(
                f"{where}: this registry has no model {called}",
                hint="upload the model to this ClearML server, or write the id of a model there into the file",
            )
        if len(ids) > 1:
            raise DeployError(
                f"{where}: {len(ids)} models are called {called} ({', '.join(ids[:5])})",
                hint="write the id of the right one into the file",
            )
        holder[key] = {"id": ids[0]}
    _name_models(store, found)
    return found


class Planned(NamedTuple):
    """What a file would change: the Task that was read, its document, and the document that it is to have."""

    task: spec.ServingTask
    now: Document
    wanted: Document
    kept: int
    """Entries that only the Task has and that stay."""

    def changes(self) -> list[Change]:
        """Return the entries that differ, in the order of ``KINDS``."""
        return [
            (kind, key, self.now[kind].get(key), self.wanted[kind].get(key)) for kind in KINDS
            for key in sorted({*self.now[kind], *self.wanted[kind]})
            if self.now[kind].get(key) != self.wanted[kind].get(key)
        ]  # fmt: skip


def planned(store: Store, file: Path, *, prune: bool) -> Planned:
    """Compare the Task with a file (``-``: standard input). Raises ``DeployError`` and the registry's errors."""
    text = sys.stdin.read() if str(file) == "-" else file.read_text(encoding="utf-8")
    return compared(store, parsed(text, str(file)), prune=prune)


def compared(store: Store, document: Document, *, prune: bool) -> Planned:
    """Compare the Task with a document. Entries that only the Task has stay unless ``prune`` removes them.

    A default is never removed, and not written for a name that something answers itself (a canary, or an endpoint
    without a version). The versions of an auto-update rule belong to the rule: they are written if the Task has none.
    """
    task = store.task()
    wanted = copy.deepcopy(document)
    _resolve_stock_fields(store, task, wanted)
    for kind in ("endpoints", "auto_update"):
        for name, fields in wanted[kind].items():
            if fields.get("code") == {}:
                raise DeployError(
                    f"{NAMED[kind]} {name}: the serving Task does not have its code any more",
                    hint="add it again with clearml-serving, with its --preprocess file",
                )
    asked = resolved(store, wanted)
    now = document_of(store, task)
    wanted = asked if prune else {kind: {**now[kind], **asked[kind]} for kind in KINDS}
    answering = {*wanted["canaries"], *wanted["endpoints"]}
    defaults = {name: url for name, url in asked["defaults"].items() if name not in answering}
    wanted["defaults"] = {**now["defaults"], **defaults}
    for key, rule in wanted["auto_update"].items():
        if made := now["auto_update"].get(key, {}).get("versions"):
            rule["versions"] = made
    kept = 0 if prune else sum(len(now[kind].keys() - asked[kind].keys()) for kind in KINDS if kind != "defaults")
    return Planned(task, now, wanted, kept)


def described(change: Change) -> str:
    """Return a change as a line: + added, ~ changed, - removed."""
    kind, key, now, then = change
    if now is None or then is None:
        return f"{'+' if now is None else '-'} {NAMED[kind]} {key}"
    fields = [name for name in sorted({*now, *then}) if now.get(name) != then.get(name)]
    parts = (f"{name}: {_shown(name, now.get(name))} → {_shown(name, then.get(name))}" for name in fields)
    return f"~ {NAMED[kind]} {key}  {'; '.join(parts)}"


# --- changes to the Task ----------------------------------------------------------------------------------------------


@dataclass(slots=True)
class _Writes:
    sections: dict[str, dict[str, Any]] = field(default_factory=dict)
    records: list[registry.Record] = field(default_factory=list)
    code: dict[str, Mapping[str, str]] = field(default_factory=dict)
    """Key of the artifact → its files."""


def check(plan: Planned) -> None:
    """Raise ``DeployError`` if the plan would add a fault to the Task, so that it could not be served."""
    task, writes = plan.task, _writes(plan, "")
    code = {key: spec.ArtifactRef(key, "file:///code", None, is_archive=False) for key in writes.code}
    then = replace(task, sections={**task.sections, **_texts(writes)}, artifacts={**task.artifacts, **code})
    known = set(spec.decode(task).faults)
    serving = spec.decode(then)
    faults = [f"{fault.subject}: {fault.message}" for fault in serving.faults if fault not in known]
    for kind, name, _, fields in plan.changes():
        versions = [url for url, one in serving.endpoints.items() if one.endpoint == name and one.version]
        if kind == "defaults" and fields and fields["version"] not in versions:
            of_it = ", ".join(sorted(versions)) or "it has none"
            faults.append(f"default {name}: {fields['version']} is not one of its versions ({of_it})")
    if faults:
        raise DeployError(f"the result could not be served: {faults[0]}", hint="nothing was changed")


def _texts(writes: _Writes) -> dict[str, str]:
    try:
        return {name: sections.render(section) for name, section in writes.sections.items()}
    except (TypeError, ValueError) as error:
        raise DeployError(f"a section of the serving Task cannot be written in ClearML's format: {error}") from error


def apply(store: Store, plan: Planned, *, by: str) -> None:
    """Write the plan to its Task: first the code, then our records and all sections.

    Raises ``DeployError`` if somebody else has changed the Task since it was read, and the registry's errors.
    """
    task, writes = plan.task, _writes(plan, by)
    texts = _texts(writes)
    changed = [key for kind, key, _, _ in plan.changes() if kind in SECTIONS]
    with announced(store, changed, by=by, why=_WHY):
        for key, files in writes.code.items():
            _attach(store, key, files)
        again = store.task()
        if (again.sections, again.records) != (task.sections, task.records):
            raise DeployError(
                "someone else has just changed this serving Task", hint="see the changes with `diff`, and apply again"
            )
        store.write(texts, writes.records)


def _writes(plan: Planned, by: str) -> _Writes:
    found, time_now = _Writes(), time.time()
    for kind, key, now, then in plan.changes():
        if kind == "defaults":
            url = (then or {})["version"]
            found.records.append(default_versions.chosen(key, url, now=time_now, by=by, why=_WHY))
            continue
        if kind == "objectives":
            found.records.append(objective.stated(key, then or {}, now=time_now, by=by))
            continue
        section = found.sections.setdefault(SECTIONS[kind], record.section(plan.task, SECTIONS[kind]))
        raw = next((name for name in section if name.strip("/") == key), key)
        if then is None:
            del section[raw]
            continue
        section[raw] = _stock(kind, key, then)
        had = now or {}
        if "code" in then and then["code"] != had.get("code"):
            found.code[_artifact(key)] = then["code"]
        if then.get("versions") and not had.get("versions") and kind == "auto_update":
            made = found.sections.setdefault(_VERSIONS, record.section(plan.task, _VERSIONS))
            for number, model in then["versions"].items():
                made[f"{key}/{number}"] = version_numbers.entry(section[raw], key, int(number), str(model["id"]))
    return found


def _stock(kind: str, key: str, fields: Mapping[str, Any]) -> dict[str, Any]:
    """Return an entry as clearml-serving writes it."""
    found = {name: value for name, value in fields.items() if name not in ("model", "code", "versions")}
    name = key
    if kind == "endpoints" and found.get("version"):
        name = key.removesuffix(f"/{found['version']}")
    found = {KEY_FIELD[kind]: name, **found}
    if "model" in fields:
        found["model_id"] = fields["model"]["id"]
    if "code" in fields:
        found["preprocess_artifact"] = _artifact(key)
    return found


def _artifact(key: str) -> str:
    return f"py_code_{key.replace('/', '_')}"


def _attach(store: Store, key: str, files: Mapping[str, str]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        for name, text in files.items():
            path = Path(folder, name)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
        names = list(files)
        store.attach(key, Path(folder, names[0]) if len(names) == 1 else Path(folder))


# --- parts ------------------------------------------------------------------------------------------------------------


def _resolve_stock_fields(store: Store, task: spec.ServingTask, document: Document) -> None:
    """Give the entries of a document that name their model and code as ClearML does our fields for them."""

    @functools.cache
    def code(key: str) -> dict[str, str]:
        ref = task.artifacts.get(key)
        return {} if ref is None else _code(store, ref, key)

    for kind in ("endpoints", "auto_update"):
        for fields in document[kind].values():
            if key := fields.pop("preprocess_artifact", None):
                fields["code"] = code(str(key))
            if model_id := fields.pop("model_id", None):
                fields["model"] = {"id": str(model_id)}


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


def _places(document: Document) -> Iterator[tuple[str, dict[str, Any], str]]:
    """Yield the place of each model in a document: the name of its entry, and what holds it under which key."""
    for kind in ("endpoints", "auto_update"):
        for name, fields in document[kind].items():
            if "model" in fields:
                yield f"{NAMED[kind]} {name}", fields, "model"
            for number in fields.get("versions", {}):
                yield f"{NAMED[kind]} {name}", fields["versions"], number


def _name_models(store: Store, document: Document) -> None:
    """Give the models in a document, known by their ids, their names and projects."""
    places = [*_places(document)]
    known = store.records({holder[key]["id"] for _, holder, key in places}) if places else {}
    project = functools.cache(store.project_name)
    for _, holder, key in places:
        if model := known.get(holder[key]["id"]):
            holder[key] = said({
                **holder[key], "name": model.name, "project": project(model.project) if model.project else ""
            })  # fmt: skip


def _shown(name: str, value: Any) -> str:
    if value is None:
        return "–"
    if name == "model":
        return str(value["id"])
    if name in ("code", "versions"):
        return ", ".join(value)[:_SHOWN]
    return (value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str))[:_SHOWN]


class _Dumper(yaml.SafeDumper):  # type: ignore[misc]  # without types
    """Writes texts with several lines as blocks, and what occurs twice twice instead of naming it (``&id001``)."""

    def ignore_aliases(self, data: object) -> bool:  # noqa: ARG002 - the name it overrides
        """Never name a value to refer to it later: people edit the file and compare its versions."""
        return True


def _block(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style="|" if "\n" in text else None)


_Dumper.add_representer(str, _block)

"""The state of a serving Task as a document: made from a Task, compared with one, and applied to one.

Used by ``export``, ``diff`` and ``apply``. A document has what people decide: entries with the fields that the serving
Task has (``history/changes``); the code that these name; the numbers that auto-update has given; defaults, objectives.
Models are named by id and, for use on another server, by project and name.
"""

from __future__ import annotations

import copy
import functools
import json
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, Final, Literal, NamedTuple, Protocol

import yaml
from pydantic import AfterValidator, BaseModel, Field, StrictStr, ValidationError

from deploy.cli import objective
from deploy.controller import default_versions
from deploy.controller.history.changes import KEY_FIELD, NAMED, SECTIONS, entries, said
from deploy.controller.rollouts import record
from deploy.tools import sections
from deploy.tools.errors import DeployError
from gateway import preview, registry, spec, version_numbers
from gateway.file_names import path_within

KINDS: Final = ("code", *SECTIONS, "versions", "defaults", "objectives")
"""Parts of a document that are compared; each one needs only those before it."""
_ALWAYS: Final = ("code", "versions", "defaults")
"""Parts of which nothing is removed: what is not used does no harm."""
_GIVEN: Final = "model_monitoring_eps"
"""The section with the versions of auto-update rules, of which the controller takes the numbers over."""
_WHY: Final = "applied from a file"
_HINT: Final = "`triton-gateway export` writes such a file"
_SHOWN: Final = 80
"""Characters of a value that are shown in a line."""

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


Change = tuple[str, str, Any, Any]
"""Kind, name, fields now and fields then of an entry that differs. None: there is no such entry."""


# --- a Task to a document ---------------------------------------------------------------------------------------------


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
        if (parts := spec.objective_parts(stored))
    }  # fmt: skip
    project = functools.cache(store.project_name)
    used = {holder[key] for _, holder, key in _models(found)}
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
        if unknown := [part for part in fields if part not in spec.OBJECTIVE]:
            raise DeployError(f"{where} has an unknown part {unknown[0]}", hint=f"parts: {', '.join(spec.OBJECTIVE)}")
        document["objectives"][key] = objective.checked({part: str(value) for part, value in fields.items()}, where)
    return document


# --- two documents to changes -----------------------------------------------------------------------------------------


def resolved(store: Store, document: Document) -> Document:
    """Return ``document`` with the model ids of this registry. Raises ``DeployError`` for a model that it lacks."""
    found = copy.deepcopy(document)
    places = [*_models(found)]
    known = store.records({holder[key] for _, holder, key in places}) if places else {}
    for where, holder, key in places:
        model_id = holder[key]
        if model_id in known:
            continue
        model = found["models"].get(model_id, {})
        name, project = model.get("name", ""), model.get("project", "")
        ids: Sequence[str] = store.find_models(registry.ModelQuery(project=project or None, name=name)) if name else ()
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
        holder[key] = ids[0]
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


def compared(store: Store, document: Document, *, prune: bool) -> Planned:
    """Compare the Task with a document. Entries that only the Task has stay unless ``prune`` removes them.

    A default is not written for a name that something answers itself (a canary, or an endpoint without a version). The
    versions of an auto-update rule belong to the rule: they are written if the Task has none.
    """
    asked = resolved(store, document)
    task = store.task()
    now = document_of(store, task)
    wanted = {kind: asked[kind] if prune and kind not in _ALWAYS else {**now[kind], **asked[kind]} for kind in KINDS}
    answering = {*wanted["canaries"], *wanted["endpoints"]}
    defaults = {name: url for name, url in asked["defaults"].items() if name not in answering}
    wanted["defaults"] = {**now["defaults"], **defaults}
    numbered = {url.rpartition("/")[0] for url in now["versions"]}
    fresh = {url: model for url, model in asked["versions"].items() if url.rpartition("/")[0] not in numbered}
    wanted["versions"] = {**now["versions"], **fresh}
    kept = 0 if prune else sum(len(now[kind].keys() - asked[kind].keys()) for kind in KINDS if kind not in _ALWAYS)
    return Planned(task, now, wanted, kept)


def described(change: Change) -> str:
    """Return a change as a line: + added, ~ changed, - removed."""
    kind, key, now, then = change
    what = f"{NAMED.get(kind, kind.removesuffix('s'))} {key}"
    if now is None or then is None:
        return f"{'+' if now is None else '-'} {what}"
    if isinstance(now, str):
        return f"~ {what}  {now} → {then}"
    fields = [name for name in sorted({*now, *then}) if now.get(name) != then.get(name)]
    if kind == "code":
        return f"~ {what}  {', '.join(fields)[:_SHOWN]}"
    return f"~ {what}  {'; '.join(f'{name}: {_shown(now.get(name))} → {_shown(then.get(name))}' for name in fields)}"


# --- changes to the Task ----------------------------------------------------------------------------------------------


class _Writes(NamedTuple):
    sections: dict[str, str]
    """Section → its text."""
    records: list[registry.Record]
    code: dict[str, Mapping[str, str]]
    """Key of the artifact → its files."""


def check(store: Store, plan: Planned) -> None:
    """Raise ``DeployError`` if the plan would add a fault to the Task, so that it could not be served."""
    task, writes = plan.task, _writes(plan, "")
    code = {key: spec.ArtifactRef(key, "file:///code", None, is_archive=False) for key in writes.code}
    then = replace(task, sections={**task.sections, **writes.sections}, artifacts={**task.artifacts, **code})
    known = preview.preview(store, spec.decode(task)).faults
    found = preview.preview(store, spec.decode(then))
    faults = [f"{fault.subject}: {fault.message}" for fault in found.faults if fault not in known]
    for kind, name, _, fields in plan.changes():
        versions = [url for url, one in found.spec.endpoints.items() if one.endpoint == name and one.version]
        if kind == "defaults" and fields not in versions:
            of_it = ", ".join(sorted(versions)) or "it has none"
            faults.append(f"default {name}: {fields} is not one of its versions ({of_it})")
        if kind == "versions" and name not in found.spec.endpoints:
            faults.append(f"version {name}: there is no auto-update rule {name.rpartition('/')[0]}")
    if faults:
        raise DeployError(f"the result could not be served: {faults[0]}", hint="nothing was changed")


def apply(store: Store, plan: Planned, *, by: str) -> None:
    """Write the plan to its Task: first the code, then our records and all sections.

    Raises ``DeployError`` if somebody else has changed the Task since it was read, and the registry's errors.
    """
    task, writes = plan.task, _writes(plan, by)
    for key, files in writes.code.items():
        _attach(store, key, files)
    again = store.task()
    if (again.sections, again.records) != (task.sections, task.records):
        raise DeployError(
            "someone else has just changed this serving Task", hint="see the changes with `diff`, and apply again"
        )
    store.write(writes.sections, writes.records)


def _writes(plan: Planned, by: str) -> _Writes:
    """Return what the plan writes. Raises ``DeployError`` if a section has no form that the SDK reads."""
    changed, records, code, time_now = dict[str, dict[str, Any]](), list[registry.Record](), {}, time.time()
    for kind, key, _, then in plan.changes():
        name = _GIVEN if kind == "versions" else SECTIONS.get(kind, kind)
        if kind == "code":
            code[key] = then
        elif kind == "defaults":
            records.append(default_versions.chosen(key, then, now=time_now, by=by, why=_WHY))
        elif kind == "objectives":
            records.append(objective.stated(key, then or {}, now=time_now, by=by))
        else:
            section = changed.setdefault(name, record.section(plan.task, name))
            raw = next((known for known in section if known.strip("/") == key), key)
            section.pop(raw, None)
            if kind == "versions":
                endpoint, _, number = key.rpartition("/")
                rule = plan.wanted["auto_update"].get(endpoint, {})
                section[key] = version_numbers.entry(rule, endpoint, int(number), then)
            elif then is not None:
                named = key.removesuffix(f"/{then['version']}") if kind == "endpoints" and "version" in then else key
                section[raw] = {**then, KEY_FIELD[kind]: named}
    try:
        return _Writes({name: sections.render(section) for name, section in changed.items()}, records, code)
    except (TypeError, ValueError) as error:
        raise DeployError(f"a section of the serving Task cannot be written in ClearML's format: {error}") from error


def _attach(store: Store, key: str, files: Mapping[str, str]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        for name, text in files.items():
            path = Path(folder, name)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
        names = list(files)
        store.attach(key, Path(folder, names[0]) if len(names) == 1 else Path(folder))


# --- parts ------------------------------------------------------------------------------------------------------------


def _models(document: Document) -> Iterator[tuple[str, dict[str, Any], str]]:
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


def _shown(value: Any) -> str:
    if value is None:
        return "–"
    return (value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str))[:_SHOWN]


class _Dumper(yaml.SafeDumper):  # type: ignore[misc]  # without types
    """Writes texts with several lines as blocks, and what occurs twice twice instead of naming it (``&id001``)."""

    def ignore_aliases(self, data: object) -> bool:  # noqa: ARG002 - the name it overrides
        """Never name a value to refer to it later: people edit the file and compare its versions."""
        return True


def _block(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style="|" if "\n" in text else None)


_Dumper.add_representer(str, _block)

"""What a document would change in a serving Task: compared, checked, and written. For ``diff`` and ``apply``."""

from __future__ import annotations

import copy
import json
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, NamedTuple

from deploy.cli import objective
from deploy.cli.state_file import KINDS, Document, Store, document_of, models_of
from deploy.controller import default_versions
from deploy.controller.history.changes import KEY_FIELD, NAMED, SECTIONS
from deploy.controller.rollouts import record
from deploy.tools import sections
from deploy.tools.errors import DeployError
from gateway import preview, registry, spec, version_numbers

_ALWAYS: Final = ("code", "versions", "defaults")
"""Parts of which nothing is removed: what is not used does no harm."""
_GIVEN: Final = "model_monitoring_eps"
"""The section with the versions of auto-update rules, of which the controller takes the numbers over."""
_WHY: Final = "applied from a file"
_SHOWN: Final = 80
"""Characters of a value that are shown in a line."""

Change = tuple[str, str, Any, Any]
"""Kind, name, fields now and fields then of an entry that differs. None: there is no such entry."""


def resolved(store: Store, document: Document) -> Document:
    """Return ``document`` with the model ids of this registry. Raises ``DeployError`` for a model that it lacks."""
    found = copy.deepcopy(document)
    places = [*models_of(found)]
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


def _shown(value: Any) -> str:
    if value is None:
        return "–"
    return (value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str))[:_SHOWN]

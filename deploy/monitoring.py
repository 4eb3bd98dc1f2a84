"""Auto-update, the pure part: which models are which versions of an endpoint, and the sections that say so.

Called by ``deploy/auto_update.py`` with the serving Task and what its rules (``model_monitoring``) select. Answers with
the sections to write: ``model_monitoring_eps`` in ClearML's own form, which gateways and model sync serve from, and a
ledger of every number ever given. A number belongs to its model for ever: it is neither given again nor changed,
whatever is published, deleted or restarted.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from deploy.controlplane import sections
from deploy.registry import ModelQuery, section_text
from gateway.spec import MonitoringSpec, ServingSpec, decode, normalize_url

RULES: Final = "model_monitoring"
SERVED: Final = "model_monitoring_eps"
LEDGER: Final = "triton_gateway_versions"

_ENDPOINT_FIELDS: Final = (
    "engine_type", "preprocess_artifact", "input_size", "input_type", "input_name", "output_size", "output_type",
    "output_name", "auxiliary_cfg",
)  # fmt: skip
"""What clearml-serving copies from a rule into each endpoint it makes."""

Numbers = Mapping[str, int]
"""Model id → version number of one endpoint."""


@dataclass(frozen=True, slots=True)
class Update:
    """Sections to write (none: everything is as it should be) and what people should know."""

    sections: Mapping[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()


def query_of(rule: MonitoringSpec) -> ModelQuery:
    """Return what to ask the registry for ``rule``."""
    return ModelQuery(rule.project, rule.name, rule.tags, rule.only_published, rule.max_versions)


def assign(
    known: Numbers, newest_first: Sequence[str], *, most: int | None, taken: Collection[int] = ()
) -> tuple[dict[int, str], dict[str, int]]:
    """Return the versions to serve (number → model) and the ledger after it.

    The newest ``most`` models are served. New ones get numbers above every number given before, the newest the highest,
    as in clearml-serving; numbers in ``taken`` (fixed endpoints of the same name) are left out.
    """
    wanted = list(dict.fromkeys(newest_first))[:most]
    ledger = dict(known)
    number = max((*ledger.values(), 0))
    for model_id in reversed(wanted):
        if model_id not in ledger:
            number += 1
            while number in taken:
                number += 1
            ledger[model_id] = number
    return {ledger[model_id]: model_id for model_id in wanted}, ledger


def update(task: Mapping[str, Any], found: Mapping[str, Sequence[str]]) -> Update:
    """Return what to write so that ``task`` serves what its rules select.

    ``found``: endpoint of a rule → ids of its models, newest first. A rule that is not in it (the registry could not be
    asked), that is faulty, or that selects nothing at all keeps the versions it has: nothing is taken out of service by
    an accident. Versions that a canary, a rollout or a shadow names stay, whatever the limit. Versions of rules that
    are gone are removed.
    """
    try:
        rules = sections.parse(section_text(task, RULES) or "{}")
        served = sections.parse(section_text(task, SERVED) or "{}")
        fixed = sections.parse(section_text(task, "endpoints") or "{}")
        ledger = _ledger(section_text(task, LEDGER))
    except (sections.Unparsable, sections.Dynamic) as error:
        return Update(notes=(f"auto-update waits until the serving Task can be read: {error}",))
    notes: list[str] = []
    # Rules and endpoints are written with and without outer slashes.
    raw_rules = {str(fields.get("base_serving_url") or key).strip("/"): fields
                 for key, fields in rules.items() if isinstance(fields, Mapping)}  # fmt: skip
    spec = decode(task)
    decoded, routed = spec.monitoring, _routed(spec)
    wanted: dict[str, Any] = {}
    numbers: dict[str, dict[str, int]] = {name: dict(known) for name, known in ledger.items()}
    for endpoint, fields in raw_rules.items():
        mine = {key: entry for key, entry in served.items() if _endpoint_of(key, entry) == endpoint}
        known = _numbers(mine, ledger.get(endpoint, {}))
        numbers[endpoint] = known
        rule, models = decoded.get(endpoint), found.get(endpoint)
        if rule is None or models is None:
            wanted.update(mine)
            continue
        if not models and mine:
            notes.append(f"auto-update of {endpoint} matches no model any more; its versions stay")
            wanted.update(mine)
            continue
        versions, numbers[endpoint] = assign(known, models, most=rule.max_versions, taken=_taken(fixed, endpoint))
        # A version that a route sends requests to is not the limit's to take away.
        versions |= {known[entry["model_id"]]: entry["model_id"] for key, entry in mine.items() if key in routed}
        for number, model_id in sorted(versions.items()):
            wanted[f"{endpoint}/{number}"] = _entry(fields, endpoint, number, model_id)
    changed: dict[str, str] = {}
    if wanted != served:
        changed[SERVED] = sections.render(wanted)
    numbers = {name: known for name, known in numbers.items() if known}
    if numbers != ledger:
        changed[LEDGER] = sections.render(
            {name: dict(sorted(known.items(), key=lambda item: item[1])) for name, known in sorted(numbers.items())}
        )
    return Update(changed, tuple(notes))


def _entry(rule: Mapping[str, Any], endpoint: str, number: int, model_id: str) -> dict[str, Any]:
    copied = {name: rule[name] for name in _ENDPOINT_FIELDS if rule.get(name) is not None}
    engine = {"engine_type": copied.pop("engine_type")} if "engine_type" in copied else {}
    return {**engine, "serving_url": endpoint, "model_id": model_id, "version": str(number), **copied}


def _endpoint_of(key: str, entry: Any) -> str:
    url = entry.get("serving_url") if isinstance(entry, Mapping) else None
    return str(url or key.rpartition("/")[0]).strip("/")


def _numbers(served: Mapping[str, Any], ledger: Numbers) -> dict[str, int]:
    """Return the ledger with what is served but not in it: written by clearml-serving itself, or by a second writer.

    A number that the ledger gives to another model is not taken over: that model would change its number.
    """
    known = dict(ledger)
    for entry in served.values():
        if not isinstance(entry, Mapping):
            continue
        model_id, version = str(entry.get("model_id") or ""), str(entry.get("version") or "")
        if model_id and version.isdecimal() and model_id not in known and int(version) not in known.values():
            known[model_id] = int(version)
    return known


def _ledger(text: str) -> dict[str, dict[str, int]]:
    if not text.strip():
        return {}
    found: dict[str, dict[str, int]] = {}
    for endpoint, models in sections.parse(text).items():
        if not isinstance(models, Mapping):
            continue
        known: dict[str, int] = {}
        for model_id, number in models.items():
            if isinstance(number, int) and number > 0 and number not in known.values():
                known[str(model_id)] = number
        found[endpoint] = known
    return found


def _routed(spec: ServingSpec) -> set[str]:
    """Return the urls that canaries, rollouts and shadows name; a canary over a prefix names none."""
    named = {url for canary in spec.canaries.values() for url in canary.load_endpoints}
    named |= {url for shadow in spec.shadows.values() for url in (shadow.endpoint, shadow.to)}
    return named | {*spec.stables.values()}


def _taken(fixed: Mapping[str, Any], endpoint: str) -> set[int]:
    found = set()
    for key, entry in fixed.items():
        fields = entry if isinstance(entry, Mapping) else {}
        url = normalize_url(str(fields.get("serving_url") or key), str(fields.get("version") or ""))
        base, _, last = url.rpartition("/")
        if base == endpoint and last.isdecimal():
            found.add(int(last))
    return found

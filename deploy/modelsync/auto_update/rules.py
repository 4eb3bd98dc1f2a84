"""Auto-update, the pure part: decides which models are which versions of an endpoint.

``writer`` calls it with the serving Task and the models that its rules (``model_monitoring``) select. The result says
what to write: records of the numbers and of the served versions (``gateway/version_numbers.py``), from which gateways
and model sync serve, and ``model_monitoring_eps`` in ClearML's own form, a copy for stock readers and older gateways. A
number belongs to its model for ever. It is neither reassigned nor changed, whatever is published, deleted, restarted,
or written by clearml-serving's own containers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from deploy.tools import sections
from gateway import registry, spec, version_numbers

RULES: Final = "model_monitoring"
SERVED: Final = "model_monitoring_eps"
FORMER: Final = "triton_gateway_versions"
"""Section in which releases before the records kept the numbers. It is read once, to take the numbers over."""

Store = registry.RegistryWriter
Rule = spec.MonitoringSpec
Serving = spec.ServingSpec
Known = Mapping[str, int]
"""Model id → version number of one endpoint."""


@dataclass(frozen=True, slots=True)
class Update:
    """What to write (empty: nothing to change), and warnings for people."""

    records: tuple[registry.Record, ...] = ()
    sections: Mapping[str, str] = field(default_factory=dict)
    is_claim: bool = False
    """True if numbers were claimed: the Task must be read and evaluated again before they are given."""
    is_contested: bool = False
    """Whether a container of clearml-serving has written its own numbers into the section."""
    notes: tuple[str, ...] = ()


def text_of(task: Mapping[str, Any], section: str) -> str:
    """Return the text of a section (``RULES`` or ``SERVED``) of ``task``."""
    return registry.section_text(task, section)


def has_none(task: Mapping[str, Any]) -> bool:
    """Return True if ``task`` has neither a rule nor leftovers of one."""
    return all(len(text_of(task, section).strip()) <= 2 for section in (RULES, SERVED))


def serving(task: Mapping[str, Any]) -> Serving:
    """Return the decoded ``task``, its rules included."""
    return spec.decode(task)


def served_by(text: str) -> dict[str, str]:
    """Return the model of each url in a ``SERVED`` section."""
    found = spec.decode({"configuration": {SERVED: {"value": text}}}).endpoints
    return {url: str(one.model_id) for url, one in sorted(found.items())}


def query_of(rule: spec.MonitoringSpec) -> registry.ModelQuery:
    """Return the registry query for ``rule``."""
    return registry.ModelQuery(rule.project, rule.name, rule.tags, rule.only_published, rule.max_versions)


def update(
    task: Mapping[str, Any],
    found: Mapping[str, Sequence[str]],
    *,
    is_good: Callable[[str, str], bool] = lambda _url, _model: True,
) -> Update:
    """Return what to write so that ``task`` serves the models that its rules select.

    ``found`` maps an endpoint with a rule to the ids of its models, newest first, including models beyond the rule's
    limit that are served and still match. A rule keeps its versions if it is not in ``found`` (the registry could not
    be asked), is faulty, or selects nothing: no accident takes a version out of service.

    Versions that a canary, rollout or shadow names stay, whatever the limit. A version beyond the limit stays until
    enough newer versions work according to ``is_good`` (url, model), so that an empty model does not replace one that
    answers. Versions of deleted rules are removed.
    """
    try:
        rules = sections.parse(registry.section_text(task, RULES) or "{}")
        written = sections.parse(registry.section_text(task, SERVED) or "{}")
        fixed = sections.parse(registry.section_text(task, "endpoints") or "{}")
        former = _former(registry.section_text(task, FORMER))
    except (sections.Unparsable, sections.Dynamic) as error:
        return Update(notes=(f"auto-update waits until the serving Task can be read: {error}",))
    serving = spec.decode(task)
    numbered = version_numbers.decode(spec.records_of(task, version_numbers.KIND))
    by_endpoint = version_numbers.rules_by_endpoint(rules)
    records: list[registry.Record] = []
    notes: list[str] = []
    copy: dict[str, Any] = {}
    is_claim = is_contested = False
    for endpoint, fields in by_endpoint.items():
        mine = {key: entry for key, entry in written.items() if version_numbers.endpoint_of(key, entry) == endpoint}
        bindings = [bound for entry in mine.values() if (bound := version_numbers.binding_of(entry)) is not None]
        numbers = numbered.get(endpoint, version_numbers.Numbers())
        rule, models = serving.monitoring.get(endpoint), found.get(endpoint)
        if rule is None or models is None:
            copy.update(mine)
            continue
        known = _known(bindings, former.get(endpoint, {})) if numbers.is_new else {}
        newest = list(dict.fromkeys(models))[: rule.max_versions]
        step = version_numbers.step(numbers, newest, known=known, taken=_taken(fixed, endpoint))
        records += _bindings(endpoint, step)
        if step.claims:
            is_claim = True
            copy.update(mine)
            continue
        given = {**numbers.given, **dict(step.given)}
        # Versions that others put into service keep their numbers.
        before = numbers.served
        if before is None:
            before = frozenset(number for number, model in bindings if given.get(number) == model)
        before = frozenset(number for number in before if number in given)
        matches_none = not models and bool(before)
        if matches_none:
            serve = set(before)  # gateways report the rule as a fault (``spec.decode``)
        else:
            serve = _served(endpoint, rule, given, before, list(dict.fromkeys(models)), _routed(serving), is_good)
        if numbers.served is None or serve != set(numbers.served) or matches_none != numbers.matches_none:
            records.append(_record(version_numbers.service(endpoint, serve, matches_none=matches_none)))
        is_contested = is_contested or bool(version_numbers.others(version_numbers.Numbers(given), bindings))
        copy.update({
            f"{endpoint}/{number}": version_numbers.entry(fields, endpoint, number, given[number])
            for number in sorted(serve)
        })  # fmt: skip
    records += [
        _record(version_numbers.service(endpoint, ()))
        for endpoint, numbers in sorted(numbered.items())
        if endpoint not in by_endpoint and numbers.served
    ]
    changed = {SERVED: sections.render(copy)} if copy != written else {}
    return Update(tuple(records), changed, is_claim, is_contested, tuple(notes))


def _served(
    endpoint: str, rule: spec.MonitoringSpec, given: Mapping[int, str], before: frozenset[int], models: Sequence[str],
    routed: set[str], is_good: Callable[[str, str], bool],
) -> set[int]:  # fmt: skip
    """Return the numbers to serve: the newest, those that routes name, and older ones until enough newer ones work."""

    def works(number: int) -> bool:
        # Only gateways know whether other engines can load a model.
        return rule.engine != "triton" or is_good(f"{endpoint}/{number}", given[number])

    by_model = version_numbers.Numbers(given).by_model
    serve = {by_model[model] for model in models[: rule.max_versions]}
    missing = (rule.max_versions or 0) - sum(works(number) for number in serve)
    leaving = [by_model[model] for model in models if by_model.get(model) in before - serve]
    proven = [number for number in leaving if works(number)]
    # Until enough newer versions are known to work, all older ones stay: after a restart nothing is known yet.
    serve |= set(proven[: max(missing, 0)] if len(proven) >= missing else leaving)
    # The limit never removes a version that gets requests from a route.
    return serve | {number for number in before if f"{endpoint}/{number}" in routed}


def _bindings(endpoint: str, step: version_numbers.Step) -> list[registry.Record]:
    claims = [_record(version_numbers.binding("claim", endpoint, number, model)) for number, model in step.claims]
    return claims + [_record(version_numbers.binding("given", endpoint, *bound)) for bound in step.given]


def _record(stored: tuple[str, dict[str, Any]]) -> registry.Record:
    return registry.Record(version_numbers.KIND, *stored)


def _routed(serving: spec.ServingSpec) -> set[str]:
    """Return the urls that canaries, rollouts, shadows and defaults name. A canary over a prefix names none."""
    named = {url for canary in serving.canaries.values() for url in canary.load_endpoints}
    named |= {url for shadow in serving.shadows.values() for url in (shadow.endpoint, shadow.to)}
    return named | {*serving.stables.values(), *serving.defaults.values()}


def _known(written: Sequence[version_numbers.Binding], former: Known) -> dict[str, int]:
    """Return earlier numbers: from the section before the records, and those that clearml-serving itself wrote.

    A number that the earlier section gives to another model is not taken over, because that would change that model's
    number.
    """
    known = dict(former)
    for number, model in written:
        if model not in known and number not in known.values():
            known[model] = number
    return known


def _former(text: str) -> dict[str, dict[str, int]]:
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


def _taken(fixed: Mapping[str, Any], endpoint: str) -> set[int]:
    found = set()
    for key, entry in fixed.items():
        fields = entry if isinstance(entry, Mapping) else {}
        url = spec.normalize_url(str(fields.get("serving_url") or key), str(fields.get("version") or ""))
        base, _, last = url.rpartition("/")
        if base == endpoint and last.isdecimal():
            found.add(int(last))
    return found

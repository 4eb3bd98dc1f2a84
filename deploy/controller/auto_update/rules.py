"""Auto-update, the pure part: decides which models are which versions of an endpoint.

``writer`` calls it with the serving Task and the models that its rules (``model_monitoring``) select. The result says
what to write: the record of each endpoint's numbers (``gateway/version_numbers.py``), from which gateways and model
sync serve, and ``model_monitoring_eps`` in ClearML's own form, a copy for stock readers. A number belongs to its model
for ever. It is neither reassigned nor changed, whatever is published, deleted, restarted, or written by
clearml-serving's own containers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from deploy.tools import sections
from deploy.tools.errors import DeployError
from gateway import hocon, registry, spec, version_numbers

RULES: Final = "model_monitoring"
SERVED: Final = "model_monitoring_eps"


@dataclass(frozen=True, slots=True)
class Update:
    """What to write; empty: nothing to change."""

    records: tuple[registry.Record, ...] = ()
    sections: Mapping[str, str] = field(default_factory=dict)
    is_contested: bool = False
    """Whether a container of clearml-serving has written its own numbers into the section."""


def update(
    task: spec.ServingTask,
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
    answers. Versions of deleted rules are removed. Raises ``DeployError`` if a section cannot be read.
    """
    try:
        rules = hocon.parse(task.sections.get(RULES, "") or "{}")
        written = hocon.parse(task.sections.get(SERVED, "") or "{}")
        fixed = hocon.parse(task.sections.get("endpoints", "") or "{}")
    except hocon.Unreadable as error:
        raise DeployError(f"it waits until the serving Task can be read: {error}") from error
    serving = spec.decode(task)
    numbered = version_numbers.decode(spec.records_of(task, version_numbers.KIND))
    by_endpoint = version_numbers.rules_by_endpoint(rules)
    records: list[registry.Record] = []
    copy: dict[str, Any] = {}
    is_contested = False
    for endpoint, fields in by_endpoint.items():
        mine = {key: entry for key, entry in written.items() if version_numbers.endpoint_of(key, entry) == endpoint}
        rule, models = serving.monitoring.get(endpoint), found.get(endpoint)
        if rule is None or models is None:
            copy.update(mine)
            continue
        bindings = [bound for entry in mine.values() if (bound := version_numbers.binding_of(entry)) is not None]
        numbers = numbered.get(endpoint) or version_numbers.taken_over(bindings)
        models = list(dict.fromkeys(models))
        after = numbers.with_models(models[: rule.max_versions], _taken(fixed, endpoint))
        matches_none = not models and bool(numbers.served)
        if matches_none:
            serve = set(numbers.served & numbers.models.keys())  # gateways report the rule as a fault (``spec.decode``)
        else:
            serve = _served(endpoint, rule, after, models, _routed(serving), is_good)
        after = after.serving(serve, matches_none=matches_none)
        if after != numbered.get(endpoint):
            records.append(_record(endpoint, after))
        is_contested = is_contested or bool(version_numbers.others(after, bindings))
        copy.update({
            f"{endpoint}/{number}": version_numbers.entry(fields, endpoint, number, after.models[number])
            for number in sorted(serve)
        })  # fmt: skip
    records += [
        _record(endpoint, numbers.serving(()))
        for endpoint, numbers in sorted(numbered.items())
        if endpoint not in by_endpoint and numbers.served
    ]
    changed = {SERVED: sections.render(copy)} if copy != written else {}
    return Update(tuple(records), changed, is_contested)


def _served(
    endpoint: str, rule: spec.MonitoringSpec, numbers: version_numbers.Numbers, models: Sequence[str],
    routed: set[str], is_good: Callable[[str, str], bool],
) -> set[int]:  # fmt: skip
    """Return the numbers to serve: the newest, those that routes name, and older ones until enough newer ones work."""

    def works(number: int) -> bool:
        # Only gateways know whether other engines can load a model.
        return rule.engine != "triton" or is_good(f"{endpoint}/{number}", numbers.models[number])

    by_model, before = numbers.by_model, numbers.served & numbers.models.keys()
    serve = {by_model[model] for model in models[: rule.max_versions]}
    missing = (rule.max_versions or 0) - sum(works(number) for number in serve)
    leaving = [by_model[model] for model in models if by_model.get(model) in before - serve]
    proven = [number for number in leaving if works(number)]
    # Until enough newer versions are known to work, all older ones stay: after a restart nothing is known yet.
    serve |= set(proven[: max(missing, 0)] if len(proven) >= missing else leaving)
    # The limit never removes a version that gets requests from a route.
    return serve | {number for number in before if f"{endpoint}/{number}" in routed}


def _record(endpoint: str, numbers: version_numbers.Numbers) -> registry.Record:
    return registry.Record(version_numbers.KIND, endpoint, version_numbers.encode(numbers))


def _routed(serving: spec.ServingSpec) -> set[str]:
    """Return the urls that canaries, rollouts, shadows and defaults name. A canary over a prefix names none."""
    named = {url for canary in serving.canaries.values() for url in canary.load_endpoints}
    named |= {url for shadow in serving.shadows.values() for url in (shadow.endpoint, shadow.to)}
    return named | {*serving.stables.values(), *serving.defaults.values()}


def _taken(fixed: Mapping[str, Any], endpoint: str) -> set[int]:
    found = set()
    for key, entry in fixed.items():
        fields = entry if isinstance(entry, Mapping) else {}
        url = spec.normalize_url(str(fields.get("serving_url") or key), str(fields.get("version") or ""))
        base, _, last = url.rpartition("/")
        if base == endpoint and last.isdecimal():
            found.add(int(last))
    return found

"""Version numbers of auto-update endpoints, according to our own records. Pure.

clearml-serving's inference containers number versions themselves, from 1 at every start, and write the numbers to
``model_monitoring_eps``. A number must never change its model because of that. So the controller gives numbers in
records of ours, one per endpoint, which no stock tool writes; gateways and model sync read them there. The section is
only a copy for stock readers. ``spec.decode`` asks this file what is served, ``deploy/controller/auto_update`` what to
write next.
"""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

KIND: Final = "version_number"
KEPT: Final = 100
"""Numbers out of service whose models are remembered: a model that comes back later than that gets a new number."""

_ENDPOINT_FIELDS: Final = (
    "engine_type", "preprocess_artifact", "input_size", "input_type", "input_name", "output_size", "output_type",
    "output_name", "auxiliary_cfg",
)  # fmt: skip
"""Fields that clearml-serving copies from a rule into each endpoint that it makes."""

Binding = tuple[int, str]
"""A number and the id of its model."""


@dataclass(frozen=True, slots=True)
class Numbers:
    """The record of one endpoint."""

    models: Mapping[int, str] = field(default_factory=dict)
    """Number → model id; a number never changes its model, and is never given again."""
    last: int = 0
    """The highest number that was ever given."""
    served: frozenset[int] = frozenset()
    """The numbers in service."""
    matches_none: bool = False
    """Whether the rule matched no model when this was last decided."""

    @property
    def by_model(self) -> dict[str, int]:
        """Model id → its lowest number."""
        return {model: number for number, model in sorted(self.models.items(), reverse=True)}

    def with_models(self, newest_first: Sequence[str], taken: Collection[int] = ()) -> Numbers:
        """Return the numbers with one for each of these models.

        The newest model's is the highest, and those in ``taken`` (fixed endpoints of the same name) are skipped.
        """
        models, last, known = dict(self.models), self.last, set(self.models.values())
        for model in reversed(newest_first):
            if model not in known:
                last += 1
                while last in taken:
                    last += 1
                models[last] = model
        return replace(self, models=models, last=last)

    def serving(self, served: Collection[int], *, matches_none: bool = False) -> Numbers:
        """Return the numbers with these in service, and of the others the latest ``KEPT``."""
        kept = {*served, *sorted(self.models)[-KEPT:]}
        models = {number: model for number, model in self.models.items() if number in kept}
        return Numbers(models, self.last, frozenset(served), matches_none)


def decode(records: Mapping[str, Mapping[str, Any]]) -> dict[str, Numbers]:
    """Return the numbers of each endpoint from the records of this kind; unreadable records are skipped."""
    found = {}
    for endpoint, value in records.items():
        with contextlib.suppress(KeyError, TypeError, ValueError, OverflowError, AttributeError):
            models = {int(number): str(model) for number, model in value["models"].items()}
            served = frozenset(int(number) for number in value["served"])
            last = max(int(value["last"]), *models, 0)
            found[endpoint] = Numbers(models, last, served, bool(value.get("matches_none")))
    return found


def encode(numbers: Numbers) -> dict[str, Any]:
    """Return the record of an endpoint, whose key is the endpoint's name."""
    models = {str(number): model for number, model in sorted(numbers.models.items())}
    value = {"models": models, "last": numbers.last, "served": sorted(numbers.served)}
    return {**value, "matches_none": True} if numbers.matches_none else value


def taken_over(bindings: Iterable[Binding]) -> Numbers:
    """Return the numbers that clearml-serving has given, so that no url changes its meaning when we begin."""
    models: dict[int, str] = {}
    for number, model in bindings:
        if model not in models.values():
            models.setdefault(number, model)
    return Numbers(models, max(models, default=0), frozenset(models))


def entry(rule: Mapping[str, Any], endpoint: str, number: int, model: str) -> dict[str, Any]:
    """Return a version's entry in ``model_monitoring_eps``, as clearml-serving writes it from the rule's fields."""
    copied = {name: rule[name] for name in _ENDPOINT_FIELDS if rule.get(name) is not None}
    engine = {"engine_type": copied.pop("engine_type")} if "engine_type" in copied else {}
    return {**engine, "serving_url": endpoint, "model_id": model, "version": str(number), **copied}


def endpoint_of(key: str, fields: Any) -> str:
    """Return the endpoint of an entry of ``model_monitoring_eps``."""
    url = fields.get("serving_url") if isinstance(fields, Mapping) else None
    return str(url or key.rpartition("/")[0]).strip("/")


def binding_of(fields: Any) -> Binding | None:
    """Return number and model of such an entry; None if it has none."""
    if not isinstance(fields, Mapping):
        return None
    model, version = (str(fields.get(name) or "") for name in ("model_id", "version"))
    return (int(version), model) if model and version.isdecimal() else None


def rules_by_endpoint(rules: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    """Return the rules of ``model_monitoring`` by endpoint, without outer slashes."""
    return {
        str(fields.get("base_serving_url") or key).strip("/"): fields
        for key, fields in rules.items()
        if isinstance(fields, Mapping)
    }


def others(numbers: Numbers, bindings: Iterable[Binding]) -> list[Binding]:
    """Return the bindings that contradict ours."""
    return [(number, model) for number, model in bindings if numbers.models.get(number, "") != model]

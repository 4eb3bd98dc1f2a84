"""Assigns version numbers of auto-update endpoints to models, according to our own records. Pure.

clearml-serving's inference containers number versions themselves, from 1 at every start, and write the numbers to
``model_monitoring_eps``. A number must never change its model because of that. So numbers are given in our records
(``registry/ledger.py``, kind ``version_number``), which no stock tool writes; gateways and model sync read them there.
The section is only a copy for stock readers. ``spec.decode`` asks this file what is served,
``deploy/modelsync/auto_update/rules`` what to write next.

Several model syncs may number at once, and there is no compare-and-set. Records are therefore only ever added, in two
steps. A *claim* names a number and a model. If a read that began after a claim was written shows no other claim of its
number, any reader may record that the number is *given*. A number that two models claim is given to neither, and both
claim new ones. Two models are never given the same number: the first reader of the later claim sees the earlier one.
"""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

KIND: Final = "version_number"

_ENDPOINT_FIELDS: Final = (
    "engine_type", "preprocess_artifact", "input_size", "input_type", "input_name", "output_size", "output_type",
    "output_name", "auxiliary_cfg",
)  # fmt: skip
"""Fields that clearml-serving copies from a rule into each endpoint that it makes."""

Binding = tuple[int, str]
"""A number and the id of its model."""


@dataclass(frozen=True, slots=True)
class Numbers:
    """The records of one endpoint."""

    given: Mapping[int, str] = field(default_factory=dict)
    """Number → model id; never changes."""
    claims: Mapping[int, frozenset[str]] = field(default_factory=dict)
    """Number → the models that claimed it, including those it was given to."""
    served: frozenset[int] | None = None
    """The numbers in service; None until they were first decided."""
    matches_none: bool = False
    """Whether the rule matched no model when this was last decided."""

    @property
    def is_new(self) -> bool:
        """Whether numbers of others (clearml-serving, an older version of ours) must still be taken over."""
        return self.served is None and not self.given

    @property
    def by_model(self) -> dict[str, int]:
        """Model id → its lowest number."""
        return {model: number for number, model in sorted(self.given.items(), reverse=True)}

    def model_of(self, number: int) -> str | None:
        """Return the model of ``number``: the one it is given to, or else its only claimant."""
        claimed = self.claims.get(number, frozenset())
        return self.given.get(number) or (next(iter(claimed)) if len(claimed) == 1 else None)


@dataclass(frozen=True, slots=True)
class Step:
    """Records to add for one endpoint. After ``claims``, read the records again before deciding anything else."""

    claims: tuple[Binding, ...] = ()
    given: tuple[Binding, ...] = ()


def decode(records: Mapping[str, Mapping[str, Any]]) -> dict[str, Numbers]:
    """Return the numbers of each endpoint from the records of this kind; unreadable records are skipped."""
    given: dict[str, dict[int, str]] = {}
    claims: dict[str, dict[int, set[str]]] = {}
    served: dict[str, frozenset[int]] = {}
    matches_none: set[str] = set()
    for value in records.values():
        with contextlib.suppress(KeyError, TypeError, ValueError, OverflowError):
            endpoint, what = str(value["endpoint"]), value["record"]
            if what == "served":
                served[endpoint] = frozenset(int(number) for number in value["versions"])
                if value.get("matches_none"):
                    matches_none.add(endpoint)
                continue
            number, model = int(value["number"]), str(value["model"])
            claims.setdefault(endpoint, {}).setdefault(number, set()).add(model)
            if what == "given":
                known = given.setdefault(endpoint, {})
                known[number] = min(model, known.get(number, model))
    return {
        endpoint: Numbers(
            given.get(endpoint, {}),
            {number: frozenset(models) for number, models in claims.get(endpoint, {}).items()},
            served.get(endpoint),
            endpoint in matches_none,
        )
        for endpoint in {*given, *claims, *served}
    }


def binding(what: str, endpoint: str, number: int, model: str) -> tuple[str, dict[str, Any]]:
    """Return key and value of the record that claims (``claim``) or gives (``given``) a number; it never changes."""
    key = f"{what} {endpoint}/{number} {model}"
    return key, {"record": what, "endpoint": endpoint, "number": number, "model": model}


def service(endpoint: str, numbers: Collection[int], *, matches_none: bool = False) -> tuple[str, dict[str, Any]]:
    """Return key and value of the record of the numbers in service; ``matches_none``: the rule matches no model now."""
    record = {"record": "served", "endpoint": endpoint, "versions": sorted(numbers)}
    return f"served {endpoint}", {**record, "matches_none": True} if matches_none else record


def step(
    numbers: Numbers, newest_first: Sequence[str], *, known: Mapping[str, int], taken: Collection[int] = ()
) -> Step:
    """Return the records to add so that every model of ``newest_first`` gets a number of its own.

    ``known`` maps models to numbers that others have written. It is used until our first numbers are given, so that no
    url changes its meaning when we take over. New numbers are above all that were ever claimed, the newest model's is
    the highest, and those in ``taken`` (fixed endpoints of the same name) are skipped.
    """
    claims = {number: set(models) for number, models in numbers.claims.items()}
    added: list[Binding] = []

    def claim(number: int, model: str) -> None:
        claims.setdefault(number, set()).add(model)
        added.append((number, model))

    if numbers.is_new:
        for model, number in sorted(known.items(), key=lambda item: (item[1], item[0])):
            if model not in claims.get(number, ()):
                claim(number, model)
    by_model = numbers.by_model
    given: list[Binding] = []
    for number, models in sorted(claims.items()):
        model = next(iter(models))
        if len(models) == 1 and number not in numbers.given and model not in by_model and (number, model) not in added:
            by_model[model] = number
            given.append((number, model))
    claimed_now = {model for number, model in added if len(claims[number]) == 1}
    number = max((*claims, *numbers.given, 0))
    for model in reversed(newest_first):
        if model not in by_model and model not in claimed_now:
            number += 1
            while number in taken:
                number += 1
            claim(number, model)
    return Step(tuple(added), tuple(given))


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
    return [(number, model) for number, model in bindings if numbers.given.get(number, "") != model]

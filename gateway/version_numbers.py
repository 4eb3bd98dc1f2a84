"""Which model each version number of an auto-update endpoint is, as our own records say it. Pure.

clearml-serving's inference containers count versions for themselves, from 1 at every start, and write what they counted
to ``model_monitoring_eps``. A number must not mean another model because of that, so numbers are given in our records
(``registry/ledger.py``, kind ``version_number``), which no stock tool writes, and gateways and model sync read them
there. The section is only a copy for stock readers. ``spec.decode`` asks this file what is served,
``deploy/modelsync/auto_update/rules`` what to write next.

Several model syncs number at once and nothing can be compared and set. Records are therefore only ever added, in two
steps. A *claim* names a number and a model. A claim that is the only one for its number, in a read that began after it
was written, is *given*; whoever sees it may do that. A number that two models claim is given to neither, both claim new
ones. Two models cannot both be given a number: the first reader of the later claim sees the earlier one.
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
"""What clearml-serving copies from a rule into each endpoint it makes."""

Binding = tuple[int, str]
"""A number and the id of its model."""


@dataclass(frozen=True, slots=True)
class Numbers:
    """What the records say of one endpoint."""

    given: Mapping[int, str] = field(default_factory=dict)
    """Number → model id, for ever."""
    claims: Mapping[int, frozenset[str]] = field(default_factory=dict)
    """Number → the models it was claimed for, those it was given to included."""
    served: frozenset[int] | None = None
    """The numbers in service; None until that was decided for the first time."""

    @property
    def is_new(self) -> bool:
        """Whether what others have written (clearml-serving, an older version of ours) still has to be taken over."""
        return self.served is None and not self.given

    @property
    def by_model(self) -> dict[str, int]:
        """Model id → its number, the lowest one given to it."""
        return {model: number for number, model in sorted(self.given.items(), reverse=True)}

    def model_of(self, number: int) -> str | None:
        """Return the model that ``number`` can be taken for: the one it is given to, else the only one to claim it."""
        claimed = self.claims.get(number, frozenset())
        return self.given.get(number) or (next(iter(claimed)) if len(claimed) == 1 else None)


@dataclass(frozen=True, slots=True)
class Step:
    """What to add to the records of one endpoint; ``claims`` have to be read again before anything else is decided."""

    claims: tuple[Binding, ...] = ()
    given: tuple[Binding, ...] = ()


def decode(records: Mapping[str, Mapping[str, Any]]) -> dict[str, Numbers]:
    """Return what the records of this kind say, by endpoint; what cannot be read is left out."""
    given: dict[str, dict[int, str]] = {}
    claims: dict[str, dict[int, set[str]]] = {}
    served: dict[str, frozenset[int]] = {}
    for value in records.values():
        with contextlib.suppress(KeyError, TypeError, ValueError, OverflowError):
            endpoint, what = str(value["endpoint"]), value["record"]
            if what == "served":
                served[endpoint] = frozenset(int(number) for number in value["versions"])
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
        )
        for endpoint in {*given, *claims, *served}
    }


def binding(what: str, endpoint: str, number: int, model: str) -> tuple[str, dict[str, Any]]:
    """Return key and value of the record that claims (``claim``) or gives (``given``) a number; never changed."""
    key = f"{what} {endpoint}/{number} {model}"
    return key, {"record": what, "endpoint": endpoint, "number": number, "model": model}


def service(endpoint: str, numbers: Collection[int]) -> tuple[str, dict[str, Any]]:
    """Return key and value of the record that says which numbers are in service."""
    return f"served {endpoint}", {"record": "served", "endpoint": endpoint, "versions": sorted(numbers)}


def step(
    numbers: Numbers, newest_first: Sequence[str], *, known: Mapping[str, int], taken: Collection[int] = ()
) -> Step:
    """Return what to add so that every model of ``newest_first`` gets a number of its own.

    ``known``: model → number as others have written it; asked until the first numbers are given, so that no url
    changes its meaning when we take over. New numbers are above all that were ever claimed, the newest model's the
    highest, without those in ``taken`` (fixed endpoints of the same name).
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
    """Return a version as clearml-serving writes it into ``model_monitoring_eps``, from its rule's fields."""
    copied = {name: rule[name] for name in _ENDPOINT_FIELDS if rule.get(name) is not None}
    engine = {"engine_type": copied.pop("engine_type")} if "engine_type" in copied else {}
    return {**engine, "serving_url": endpoint, "model_id": model, "version": str(number), **copied}


def endpoint_of(key: str, fields: Any) -> str:
    """Return the endpoint of an entry of ``model_monitoring_eps``."""
    url = fields.get("serving_url") if isinstance(fields, Mapping) else None
    return str(url or key.rpartition("/")[0]).strip("/")


def binding_of(fields: Any) -> Binding | None:
    """Return number and model of such an entry; None where it has none."""
    if not isinstance(fields, Mapping):
        return None
    model, version = (str(fields.get(name) or "") for name in ("model_id", "version"))
    return (int(version), model) if model and version.isdecimal() else None


def rules_by_endpoint(rules: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    """Return the rules of ``model_monitoring`` by endpoint; they are written with and without outer slashes."""
    return {
        str(fields.get("base_serving_url") or key).strip("/"): fields
        for key, fields in rules.items()
        if isinstance(fields, Mapping)
    }


def others(numbers: Numbers, bindings: Iterable[Binding]) -> list[Binding]:
    """Return the bindings that cannot be ours: what a number of ours means never changes."""
    return [(number, model) for number, model in bindings if numbers.given.get(number, "") != model]

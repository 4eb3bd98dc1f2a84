"""The serving Task as frozen values: what people and the controller have written, and the desired state in it.

Pure. ``ServingTask`` is what a registry reads, ``decode`` finds the ``ServingSpec`` in it. ``control`` (gateway) and
``deploy/sync`` both use it, so they see the same endpoints under the same names. An invalid entry becomes a ``Fault``
with the reason; all other entries are decoded.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import json
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar

from gateway import default_version, hocon, objectives, pools, version_numbers
from gateway.errors import SpecFault
from gateway.objectives import Objective
from gateway.settings import parse_duration

T = TypeVar("T")

ENGINES: Final = ("triton", "custom", "custom_async", "sklearn", "xgboost", "lightgbm")
"""Engine types of clearml-serving."""

_OPTIONS_KEY: Final = "gateway"

PLACEMENT: Final = ("pool", "unload_after")
"""Options that say where a model is loaded; they do not affect answers."""

OBJECTIVES: Final = "objective"
"""The kind of record with an endpoint's objective."""

CONTENT_HASH: Final = "content_hash"
"""The kind of record with the ``Content`` of each model."""

_LEAST_UNLOAD_S: Final = 10.0

_MAX_LISTED: Final = 5
"""Models named in one fault. Hundreds of models may share one address."""

ROLLOUT: Final = "rollout"
"""The kind of record with rollouts by route; gateways read from it which version is stable."""

ROLLOUT_REQUEST: Final = "rollout_request"
"""The kind of record with what people ask of rollouts, by route."""

SHADOW: Final = "shadow"
"""The kind of record with shadows by endpoint."""

_BROKEN_UPLOADS: Final = ("uploading_file", "failed_uploading")
"""Last path parts of model addresses whose upload never finished (clearml SDK)."""


@dataclass(frozen=True, slots=True)
class Fault:
    """One fault of the configuration: its place, and what is wrong or what to do."""

    subject: str
    message: str


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """One declared tensor: ``shape`` without the batch dimension, −1 for a dynamic one; ``dtype`` is numpy's name."""

    name: str
    dtype: str
    shape: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class ArtifactRef:
    """A file or folder attached to the serving Task (preprocess code); ``sha256`` is that of the stored file."""

    key: str
    uri: str
    sha256: str | None
    is_archive: bool


@dataclass(frozen=True, slots=True)
class ModelRecord:
    """A model of the registry, with the fields that serving needs. ``is_package``: the address is a zip of a folder."""

    id: str
    name: str
    uri: str
    framework: str
    is_package: bool = False
    project: str = ""
    task: str = ""
    tags: tuple[str, ...] = ()
    created: str = ""
    """When it was registered (ISO 8601); empty if unknown."""
    link: str = field(default="", compare=False)
    """Its page in ClearML's web application; empty if unknown."""

    @property
    def has_data(self) -> bool:
        """False during an upload and after a failed one, when the address ends in a marker of the SDK."""
        return bool(self.uri) and self.uri.rstrip("/").rsplit("/", 1)[-1] not in _BROKEN_UPLOADS


@dataclass(frozen=True, slots=True)
class ServingTask:
    """The serving Task as a registry reads it, together with our records."""

    id: str = ""
    name: str = ""
    sections: Mapping[str, str] = field(default_factory=dict)
    """Texts by the names of clearml-serving's sections (HOCON)."""
    settings: Mapping[str, str] = field(default_factory=dict)
    """What ``clearml-serving config`` has set."""
    artifacts: Mapping[str, ArtifactRef] = field(default_factory=dict)
    """Attached code by key."""
    records: Mapping[str, Mapping[str, Mapping[str, Any]]] = field(default_factory=dict)
    """Our records: kind → key → value (``registry/ledger``)."""
    problem: str = ""
    """Why the records cannot be read; empty if they can."""
    changed_by: str = ""
    """The id of the user who changed the Task last."""


@dataclass(frozen=True, slots=True)
class Content:
    """The bytes of a model's file, as the controller recorded them first, and what it found since."""

    model: str
    name: str
    uri: str
    sha256: str
    parts: str = ""
    """Hash of what gateways read of a folder (``registry/parts``); empty for a single file."""
    found: str = ""
    """SHA-256 of other bytes that are at this address now; empty if there are none."""
    newer: tuple[str, ...] = ()
    """Models (name and id) that were registered at this address later, before these bytes were seen; the first few."""
    at: float = 0.0
    """When it was recorded (Unix seconds)."""

    def is_of(self, record: ModelRecord) -> bool:
        """Whether it is about this model at its present address: a new address is a new model."""
        return (self.model, self.uri) == (record.id, record.uri)


@dataclass(frozen=True, slots=True)
class EndpointSpec:
    """One version to serve. ``url`` is ``endpoint`` or ``endpoint/version``, without outer slashes."""

    url: str
    endpoint: str
    version: str
    engine: str
    model_id: str | None = None
    preprocess: ArtifactRef | None = None
    inputs: tuple[TensorSpec, ...] = ()
    outputs: tuple[TensorSpec, ...] = ()
    auxiliary_pbtxt: str = ""
    """``--aux-config file.pbtxt``: the text of the file."""
    auxiliary_json: str = ""
    """``--aux-config key=value …``: the nested pairs as canonical JSON."""
    options: tuple[tuple[str, str], ...] = ()
    """``--aux-config gateway.NAME=VALUE``: options of the gateway, not of Triton."""
    is_auto: bool = False
    """Whether auto-update wrote it (``model_monitoring_eps``), rather than ``model add``."""

    @property
    def auxiliary_pairs(self) -> dict[str, Any]:
        """The key=value form of ``--aux-config`` as a nested dict; empty if a config.pbtxt was given."""
        pairs: dict[str, Any] = json.loads(self.auxiliary_json or "{}")
        return pairs

    def option(self, name: str) -> str:
        """Return the text of ``--aux-config gateway.NAME=…``; empty if not given."""
        return next((value for known, value in self.options if known == name), "")

    @property
    def unload_after(self) -> float:
        """Idle seconds after which Triton's model is unloaded; 0: never. Raises ``SpecFault`` if it cannot be read."""
        text = self.option("unload_after")
        try:
            seconds = parse_duration(text or 0)
        except ValueError as error:
            raise SpecFault(f"--aux-config gateway.unload_after: {error}") from error
        if 0 < seconds < _LEAST_UNLOAD_S:
            raise SpecFault(f"--aux-config gateway.unload_after: {text} is too short: loading takes seconds, use 10s")
        return seconds


@dataclass(frozen=True, slots=True)
class CanarySpec:
    """Weights over fixed endpoint urls, or over the newest urls under a prefix (ClearML's two forms)."""

    endpoint: str
    weights: tuple[float, ...]
    load_endpoints: tuple[str, ...] = ()
    prefix: str = ""


@dataclass(frozen=True, slots=True)
class MonitoringSpec:
    """An auto-update rule: which models of the registry become versions of ``endpoint``."""

    endpoint: str
    engine: str
    project: str | None
    name: str | None
    tags: tuple[str, ...]
    only_published: bool
    max_versions: int | None
    template: EndpointSpec


@dataclass(frozen=True, slots=True)
class MetricVariable:
    """A variable declared by a user: ``scalar`` (histogram), ``enum`` (counter per value) or ``value``."""

    name: str
    type: str
    buckets: tuple[float | str, ...] = ()


@dataclass(frozen=True, slots=True)
class MetricSpec:
    """Metrics declared by a user for one endpoint url, or for a wildcard ``name/*``."""

    endpoint: str
    log_frequency: float | None
    variables: tuple[MetricVariable, ...]


@dataclass(frozen=True, slots=True)
class ShadowSpec:
    """``percent`` of the requests of ``endpoint`` (a name, or one version's url) are also sent to the url ``to``.

    Answers agree if they are equal except for numbers that differ by at most ``tolerance``. With a tolerance of 1 or
    more, embeddings agree if they place the same texts near each other.
    """

    endpoint: str
    to: str
    percent: float
    tolerance: float = 0.1


@dataclass(frozen=True)
class ServingSpec:
    """The decoded serving Task: the desired state of every gateway and every model sync that follows it."""

    task_id: str
    name: str
    endpoints: Mapping[str, EndpointSpec] = field(default_factory=dict)
    canaries: Mapping[str, CanarySpec] = field(default_factory=dict)
    monitoring: Mapping[str, MonitoringSpec] = field(default_factory=dict)
    metrics: Mapping[str, MetricSpec] = field(default_factory=dict)
    settings: Mapping[str, str] = field(default_factory=dict)
    stables: Mapping[str, str] = field(default_factory=dict)
    """Canary → the url that its rollout calls stable."""
    shadows: Mapping[str, ShadowSpec] = field(default_factory=dict)
    defaults: Mapping[str, str] = field(default_factory=dict)
    """Endpoint → the url that its bare name means, even if that version does not exist."""
    objectives: Mapping[str, Objective] = field(default_factory=dict)
    """Endpoint → its objective; without one, the default counts."""
    faults: tuple[Fault, ...] = ()

    @functools.cached_property
    def revision(self) -> str:
        """Hash of the content: equal for equal desired states, whatever else in the Task changed."""
        parts: list[Mapping[Any, object]] = [
            self.endpoints, self.canaries, self.monitoring, self.metrics, self.settings, self.stables, self.shadows,
            self.defaults, self.objectives, {number: (f.subject, f.message) for number, f in enumerate(self.faults)},
        ]  # fmt: skip
        digest = hashlib.sha256()
        for number, part in enumerate(parts):
            for item in sorted(part.items()):
                digest.update(f"{number} {item!r}\n".encode())
        return digest.hexdigest()[:16]

    @property
    def unreadable(self) -> tuple[Fault, ...]:
        """The faults of sections that cannot be read: what they ask for is unknown, so nothing may follow from it."""
        return tuple(fault for fault in self.faults if fault.subject.startswith("section "))

    @property
    def model_ids(self) -> tuple[str, ...]:
        """All model ids that endpoints refer to, sorted."""
        return tuple(sorted({e.model_id for e in self.endpoints.values() if e.model_id}))

    def bare_name(self, endpoint: str) -> str:
        """Return for people what answers ``endpoint`` without a version. Raises ``SpecFault`` if it does not exist."""
        if endpoint in self.canaries:
            return f"a canary, {described_weights(self.canaries[endpoint])}"
        if endpoint in self.endpoints:
            return "the endpoint without a version"
        if endpoint in self.defaults:
            url = self.defaults[endpoint]
            return url if url in self.endpoints else f"{url}, which was removed"
        if versions := sorted(url for url, one in self.endpoints.items() if one.endpoint == endpoint):
            return f"nothing yet; {', '.join(versions)} can be chosen"
        raise SpecFault(
            f"there is no endpoint {endpoint}", hint=known_of(one.endpoint for one in self.endpoints.values())
        )

    def url_of(self, endpoint: str, version: str) -> str:
        """Return the url of a version that a person names by its number or its whole url.

        Raises ``SpecFault``, with the existing urls, if there is none.
        """
        wanted = normalize_url(endpoint, version)
        for url in (wanted, version.strip("/")):
            if url in self.endpoints:
                return url
        raise SpecFault(f"there is no endpoint {wanted}", hint=known_of(self.endpoints))


def known_of(endpoints: Iterable[str]) -> str:
    """Return the hint for an unknown endpoint: those that there are, or how to add one."""
    names = ", ".join(sorted({*endpoints}))
    return f"the serving Task has {names or 'none; `triton-gateway deploy FOLDER --endpoint NAME` adds one'}"


def triton_model_name(endpoint: EndpointSpec, model: ModelRecord) -> str:
    """Return the name under which Triton loads this endpoint's model.

    It has a readable part and a hash of everything that determines what Triton loads. Two urls never share a name
    (``a/1`` and ``a_1`` collide in clearml-serving), and a changed model gets a new name, so that old and new can be
    loaded at the same time while requests move over.
    """
    identity = [
        endpoint.url,
        model.id,
        model.uri,
        endpoint.inputs,
        endpoint.outputs,
        endpoint.auxiliary_pbtxt,
        endpoint.auxiliary_json,
    ]
    digest = hashlib.sha256(repr(identity).encode()).hexdigest()[:10]
    readable = re.sub(r"[^A-Za-z0-9.]+", "-", endpoint.url).strip("-.")[:80]
    return f"{readable or 'model'}-{digest}"


def pools_of(endpoint: EndpointSpec, model: ModelRecord | None) -> tuple[str, ...]:
    """Return the pools of Tritons for an endpoint of engine triton; ``default`` if none is named."""
    return pools.wanted(endpoint.option("pool"), model.tags if model is not None else ())


def normalize_url(endpoint: str, version: str | None = None) -> str:
    """Join endpoint and version as clearml-serving does, without outer slashes: ``("/a/", "1")`` → ``a/1``."""
    return f"{endpoint.strip('/')}/{(version or '').strip('/')}".strip("/")


def decode(task: ServingTask) -> ServingSpec:
    """Return what a serving Task asks for.

    Invalid entries raise nothing; they are listed in ``faults``. Reads the sections ``endpoints``,
    ``model_monitoring_eps``, ``canary``, ``model_monitoring`` and ``metric_logging``.
    """
    faults: list[Fault] = []
    artifacts = task.artifacts
    endpoints: dict[str, EndpointSpec] = {}
    rules = _section(task, "model_monitoring", faults)
    auto = _auto_versions(task, _section(task, "model_monitoring_eps", faults), rules, faults)
    # Static endpoints win over auto-update ones of the same url, as in clearml-serving.
    for entries, is_auto in ((auto, True), (_section(task, "endpoints", faults), False)):
        read = functools.partial(_decode_endpoint, artifacts=artifacts, is_auto=is_auto)
        endpoints |= {one.url: one for one in _each("endpoint", entries, read, faults).values()}
    found_canaries = _each("canary", _section(task, "canary", faults), _decode_canary, faults)
    canaries = {one.endpoint: one for one in found_canaries.values()}
    monitoring = _each("auto-update", rules, functools.partial(_decode_monitoring, artifacts=artifacts), faults)
    metrics = _each("metrics", _section(task, "metric_logging", faults), _decode_metrics, faults)
    broken, names = tuple(faults), {one.endpoint for one in endpoints.values()}
    mirrored = {name: stored for name, stored in sorted(records_of(task, SHADOW).items()) if stored.get("percent")}
    shadows = _each("shadow", mirrored, functools.partial(_decode_shadow, endpoints=endpoints), faults)
    stated = {name: objectives.parts(one) for name, one in records_of(task, OBJECTIVES).items() if name in names}
    promised = {name: parts for name, parts in stated.items() if parts}
    faults.extend(_overwritten(task, endpoints))
    found = ServingSpec(
        task_id=task.id,
        name=task.name,
        endpoints=endpoints,
        canaries=canaries,
        monitoring={key.strip("/"): one for key, one in monitoring.items()},
        metrics={key.strip("/"): one for key, one in metrics.items()},
        settings=task.settings,
        stables=_decode_stables(task),
        shadows=shadows,
        defaults=_decode_defaults(task, endpoints, canaries, broken),
        objectives=_each("objective", promised, lambda _, parts: objectives.read(parts), faults),
        faults=tuple(faults),
    )
    _ = found.revision  # hashed here, in the thread that decodes, and kept
    return found


def _each(
    kind: str,
    entries: Mapping[str, Mapping[str, Any]],
    read: Callable[[str, Mapping[str, Any]], T],
    faults: list[Fault],
) -> dict[str, T]:
    """Return the entries that can be read, by key; the others are in ``faults``."""
    found = {}
    for key, fields in entries.items():
        try:
            found[key] = read(key, fields)
        except SpecFault as fault:
            faults.append(Fault(f"{kind} {key}", fault.message))
        except (AttributeError, KeyError, OverflowError, TypeError, ValueError) as error:
            faults.append(Fault(f"{kind} {key}", f"cannot be read: {type(error).__name__}: {error}"[:300]))
    return found


def _auto_versions(
    task: ServingTask,
    written: Mapping[str, dict[str, Any]],
    rules: Mapping[str, dict[str, Any]],
    faults: list[Fault],
) -> dict[str, dict[str, Any]]:
    """Return the versions of auto-update rules by url, in the form of ``model_monitoring_eps``.

    If our records number an endpoint's versions, they say what is served. The section's entries (``written``) count
    only for other endpoints.
    """
    numbered = version_numbers.decode(records_of(task, version_numbers.KIND))
    by_endpoint = version_numbers.rules_by_endpoint(rules)
    found: dict[str, dict[str, Any]] = {}
    foreign: dict[str, list[tuple[int, str]]] = {}
    for key, fields in written.items():
        endpoint = version_numbers.endpoint_of(key, fields)
        numbers, bound = numbered.get(endpoint), version_numbers.binding_of(fields)
        if numbers is None:
            found[key] = fields
        elif endpoint in by_endpoint and bound is not None and version_numbers.others(numbers, [bound]):
            foreign.setdefault(endpoint, []).append(bound)
    for endpoint, bindings in foreign.items():
        number, model = min(bindings)
        faults.append(Fault(
            f"auto-update {endpoint}",
            "an inference container of clearml-serving follows this serving Task too and counts versions for itself: "
            f"{endpoint}/{number} is model {model} there, and {numbered[endpoint].models.get(number, 'nothing')} here. "
            "Stop it when nobody calls it any more (docs/clearml.md)",
        ))  # fmt: skip
    for endpoint, numbers in numbered.items():
        rule = by_endpoint.get(endpoint)
        if rule is None:
            continue
        if numbers.matches_none:
            faults.append(Fault(
                f"auto-update {endpoint}",
                "matches no model any more: the versions that it selected before stay, and no newer model follows. "
                "Rename the project or model back, or remove the rule and add it again",
            ))  # fmt: skip
        for number in sorted(numbers.served):
            if number in numbers.models:
                model = numbers.models[number]
                found[f"{endpoint}/{number}"] = version_numbers.entry(rule, endpoint, number, model)
    return found


def records_of(task: ServingTask, kind: str) -> Mapping[str, Mapping[str, Any]]:
    """Return our records of one kind by key, as read with the Task."""
    return task.records.get(kind, {})


def described_weights(route: CanarySpec | None) -> str:
    """Return a route's weights as text, ``e/2 0.1, e/1 0.9``; empty for no route.

    Order, zeros and sums are kept: an old copy has all of them, and a small difference reveals a new decision.
    """
    if route is None:
        return ""
    if route.prefix:
        return f"{route.prefix}*: " + ", ".join(f"{weight:g}" for weight in route.weights)
    return ", ".join(f"{url} {weight:g}" for url, weight in zip(route.load_endpoints, route.weights, strict=False))


def contents(records: Mapping[str, Mapping[str, Any]]) -> dict[str, Content]:
    """Return the recorded content of each model by its id; unreadable records are skipped."""
    found = {}
    for model_id, value in records.items():
        with contextlib.suppress(TypeError):
            found[model_id] = Content(**{**value, "model": model_id, "newer": tuple(value.get("newer", ()))})
    return found


def overwritten(first: str, now: str) -> tuple[str, str]:
    """Return the fault of a model whose file was replaced, and what to do; used wherever this is reported."""
    return (
        f"was registered with sha256 {first[:12]}…, the file store now gives {now[:12]}…: another upload has "
        "overwritten it",
        "upload it again from a folder or file of another name, and add the endpoint with the new model's id",
    )


def _overwritten(task: ServingTask, endpoints: Mapping[str, EndpointSpec]) -> Iterable[Fault]:
    if task.problem:
        yield Fault("records", task.problem)
    served = {endpoint.model_id for endpoint in endpoints.values()}
    for model_id, content in sorted(contents(records_of(task, CONTENT_HASH)).items()):
        subject = f"model {content.name} ({model_id})"
        if model_id in served and content.found:
            message, hint = overwritten(content.sha256, content.found)
            yield Fault(subject, f"{message}. Versions that serve it continue, new ones refuse it: {hint}")
        elif model_id in served and content.newer:
            yield Fault(subject, _shared_address(content))


def _shared_address(content: Content) -> str:
    more = " and more" if len(content.newer) > _MAX_LISTED else ""
    return (
        f"was registered before others at its address ({', '.join(content.newer[:_MAX_LISTED])}{more} are all at "
        f"{content.uri}): unless all uploads had the same bytes, the last one has overwritten the others. Upload each "
        "from a folder or file of its own name, and add the endpoints with the new models' ids"
    )


def _section(task: ServingTask, name: str, faults: list[Fault]) -> dict[str, dict[str, Any]]:
    text = task.sections.get(name, "").strip()
    if not text:
        return {}
    try:
        entries = hocon.read(text)
    except hocon.Unreadable as error:
        faults.append(Fault(f"section {name}", f"cannot be parsed as HOCON: {error}"))
        return {}
    out: dict[str, dict[str, Any]] = {}
    for key, value in entries.items():
        if isinstance(value, dict):
            out[key] = value
        else:
            faults.append(Fault(f"{name} {key}", "is not a block of fields"))
    return out


def _decode_stables(task: ServingTask) -> dict[str, str]:
    return {
        endpoint: str(stored["stable"]).strip("/") for endpoint, stored in records_of(task, ROLLOUT).items()
        if "stable" in stored and stored.get("phase") != "refused"
    }  # fmt: skip


def guarded_until(task: ServingTask, spec: ServingSpec) -> dict[str, float]:
    """Return until when (Unix seconds) a controller guards a rollout, by route: of those whose canary has a weight.

    It changes every few seconds while a rollout runs, so it is no part of the specification.
    """
    found = {}
    for endpoint, stored in records_of(task, ROLLOUT).items():
        route = spec.canaries.get(endpoint)
        if route is None or stored.get("phase") != "running":
            continue
        weights = dict(zip(route.load_endpoints, route.weights, strict=False))
        with contextlib.suppress(KeyError, TypeError, ValueError):
            if weights.get(str(stored["canary"])):
                found[endpoint] = float(stored["guarded_until"])
    return found


_LAST_DECISIONS: Final = 6
_SHOWN_OF_ROLLOUT: Final = ("endpoint", "canary", "stable", "phase", "state", "why", "weight", "steps")


def rollouts(task: ServingTask, now: float) -> list[dict[str, Any]]:
    """Return what the status shows of each rollout: where it is, who guards it, and its last decisions.

    ``now``: Unix seconds; ``guard`` is empty if nobody guards it then. An unreadable record is left out.
    """
    found = []
    for _, stored in sorted(records_of(task, ROLLOUT).items()):
        with contextlib.suppress(KeyError, TypeError, ValueError):
            is_guarded = stored["phase"] == "running" and float(stored["guarded_until"]) > now
            found.append({
                **{name: stored[name] for name in _SHOWN_OF_ROLLOUT}, "guard": stored["guard"] if is_guarded else "",
                "way_back": stored.get("way_back", ""),
                "decisions": [{name: one[name] for name in ("at", "what", "why", "weight")}
                              for one in stored["history"][-_LAST_DECISIONS:]],
            })  # fmt: skip
    return found


def own_names(endpoints: Iterable[str], canaries: Iterable[str], faults: Iterable[Fault]) -> set[str]:
    """Return the names that a configured endpoint or canary answers, even a broken one: they have no default."""
    subjects = (fault.subject.partition(" ") for fault in faults)
    broken = (name.strip("/") for kind, _, name in subjects if kind in ("endpoint", "canary"))
    return {*endpoints, *canaries, *broken}


def _decode_defaults(
    task: ServingTask, endpoints: Mapping[str, EndpointSpec], canaries: Mapping[str, CanarySpec],
    faults: Iterable[Fault],
) -> dict[str, str]:  # fmt: skip
    """Return the defaults of bare names, except those of ``own_names``."""
    configured = own_names(endpoints, canaries, faults)
    versioned = {endpoint.endpoint for endpoint in endpoints.values()}
    recorded = default_version.read(records_of(task, default_version.KIND))
    return {
        name: one.url for name, one in sorted(recorded.items())
        if name in versioned and name not in configured
    }  # fmt: skip


def _decode_shadow(endpoint: str, stored: Mapping[str, Any], endpoints: Mapping[str, EndpointSpec]) -> ShadowSpec:
    shadow = ShadowSpec(endpoint, str(stored["to"]).strip("/"), float(stored["percent"]), float(stored["tolerance"]))
    check_shadow(shadow, endpoints)
    return shadow


def check_shadow(shadow: ShadowSpec, endpoints: Mapping[str, EndpointSpec]) -> None:
    """Raise ``SpecFault`` for a shadow with invalid numbers, or if one of its sides does not exist."""
    if not 0 < shadow.percent <= 100:
        raise SpecFault(f"a share of {shadow.percent:g} % cannot be mirrored: it must lie above 0 and up to 100")
    if not 0 <= shadow.tolerance < float("inf"):
        raise SpecFault(f"a tolerance must be 0 or more, not {shadow.tolerance:g}")
    if shadow.to not in endpoints:
        raise SpecFault(f"there is no endpoint {shadow.to} to mirror to")
    others = [e.url for e in endpoints.values() if shadow.endpoint in (e.url, e.endpoint) and e.url != shadow.to]
    if not others:
        raise SpecFault(f"no other version of {shadow.endpoint} exists whose requests could be mirrored to {shadow.to}")


def _listed(value: Any) -> list[Any]:
    if value is None:
        return []
    return list(value) if isinstance(value, list | tuple) else [value]


def _decode_tensors(fields: Mapping[str, Any], side: str) -> tuple[TensorSpec, ...]:
    names, types, sizes = (_listed(fields.get(f"{side}_{part}")) for part in ("name", "type", "size"))
    if sizes and not isinstance(sizes[0], list | tuple):
        sizes = [sizes]
    if not names:
        return ()
    if not len(names) == len(types) == len(sizes):
        raise SpecFault(
            f"declares {len(names)} {side} names, {len(types)} types and {len(sizes)} sizes; "
            f"give one of each per tensor (--{side}-name, --{side}-type, --{side}-size)"
        )
    return tuple(
        TensorSpec(str(name), str(dtype), tuple(int(size) for size in shape))
        for name, dtype, shape in zip(names, types, sizes, strict=True)
    )


def _decode_endpoint(
    key: str, fields: Mapping[str, Any], artifacts: Mapping[str, ArtifactRef], *, is_auto: bool
) -> EndpointSpec:
    endpoint = str(fields.get("serving_url") or key).strip("/")
    version = str(fields.get("version") or "").strip("/")
    if not endpoint:
        raise SpecFault("has no serving_url")
    engine = str(fields.get("engine_type") or "")
    if engine not in ENGINES:
        raise SpecFault(f"engine {engine!r} is not one of {', '.join(ENGINES)}")
    preprocess = None
    if fields.get("preprocess_artifact"):
        name = str(fields["preprocess_artifact"])
        preprocess = artifacts.get(name)
        if preprocess is None:
            raise SpecFault(f"its preprocess code {name!r} is not attached to the serving Task; add the model again")
    auxiliary = fields.get("auxiliary_cfg") or ""
    options: Mapping[str, Any] = {}
    if isinstance(auxiliary, dict):
        auxiliary = dict(auxiliary)
        options = auxiliary.pop(_OPTIONS_KEY, {})
        if not isinstance(options, dict):
            raise SpecFault(f"--aux-config {_OPTIONS_KEY} takes names: {_OPTIONS_KEY}.max_length=128")
    found = EndpointSpec(
        url=normalize_url(endpoint, version),
        endpoint=endpoint,
        version=version,
        engine=engine,
        model_id=str(fields.get("model_id") or "") or None,
        preprocess=preprocess,
        inputs=_decode_tensors(fields, "input"),
        outputs=_decode_tensors(fields, "output"),
        auxiliary_pbtxt="" if isinstance(auxiliary, dict) else str(auxiliary),
        auxiliary_json=json.dumps(auxiliary, sort_keys=True, default=str) if isinstance(auxiliary, dict) else "",
        options=tuple(sorted((str(k), str(v).strip("\\\"'")) for k, v in options.items())),
        is_auto=is_auto,
    )
    for name in PLACEMENT:
        if engine != "triton" and found.option(name):
            raise SpecFault(f"--aux-config gateway.{name} is for engine triton; engine {engine} runs in gateways")
    pools_of(found, None)  # raises for an invalid name
    _ = found.unload_after  # raises for no duration
    return found


def _decode_canary(key: str, fields: Mapping[str, Any]) -> CanarySpec:
    return CanarySpec(
        endpoint=str(fields.get("endpoint") or key).strip("/"),
        weights=tuple(float(weight) for weight in _listed(fields.get("weights"))),
        load_endpoints=tuple(str(e).strip("/") for e in _listed(fields.get("load_endpoints"))),
        prefix=str(fields.get("load_endpoint_prefix") or ""),
    )


def _decode_monitoring(key: str, fields: Mapping[str, Any], artifacts: Mapping[str, ArtifactRef]) -> MonitoringSpec:
    endpoint = str(fields.get("base_serving_url") or key).strip("/")
    template = _decode_endpoint(endpoint, {**fields, "serving_url": endpoint, "version": ""}, artifacts, is_auto=True)
    most = fields.get("max_versions")
    return MonitoringSpec(
        endpoint=endpoint,
        engine=template.engine,
        project=fields.get("monitor_project") or None,
        name=fields.get("monitor_name") or None,
        tags=tuple(str(t) for t in _listed(fields.get("monitor_tags"))),
        only_published=bool(fields.get("only_published")),
        max_versions=int(most) if most is not None else None,
        template=template,
    )


def _decode_metrics(key: str, fields: Mapping[str, Any]) -> MetricSpec:
    frequency = fields.get("log_frequency")
    return MetricSpec(
        endpoint=str(fields.get("endpoint") or key).strip("/"),
        log_frequency=float(frequency) if frequency is not None else None,
        variables=tuple(
            MetricVariable(
                name=str(name), type=str(item.get("type") or ""),
                buckets=tuple(float(one) if isinstance(one, int | float) else str(one)
                              for one in _listed(item.get("buckets"))),
            )
            for name, item in (fields.get("metrics") or {}).items()
        ),
    )  # fmt: skip

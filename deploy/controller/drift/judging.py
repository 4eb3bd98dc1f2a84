"""A duty of the controller: judges what all gateways count, and shows it as metrics and in records.

One record per endpoint, beside what model syncs report: gateways read it for their page and `/v1/status`, and the next
controller continues from it. It is written when a verdict changes or labels have come, at most once a minute, and
every five minutes.
"""

from __future__ import annotations

import contextlib
import logging
import math
from collections import defaultdict
from collections.abc import Callable, Mapping
from typing import Any, Final, Literal

from deploy.controller.counters import Numbers, Reading, grown
from deploy.controller.drift import accuracy, references
from deploy.controller.drift.accuracy import Labels
from deploy.controller.drift.evidence import Judged, Variable
from deploy.controller.drift.references import Key
from deploy.controller.drift.versions import Pair, Sentences, Versions
from deploy.controller.gateways import Gateways
from deploy.tools.errors import GatewayError
from gateway import metrics
from gateway.registry import Record, Records, RegistryWriter
from gateway.spec import ServingTask

catalog = metrics.catalog
drift = metrics.drift
ALARM_DAYS: Final = drift.ALARM_DAYS
log = logging.getLogger("triton_gateway.controller")

EVERY_S: Final = 15.0
_RECORDED_S: Final = 300.0
_CHANGED_S: Final = 60.0
"""Least time between two records of an endpoint: labels may come with every look."""
_FORGOTTEN_S: Final = 90 * 86400.0
"""The accuracy of a version is kept this long after its last label."""
VISIBLE: Final = 0.25
"""A variable is not judged until a change this large in a share of one half could be seen."""
KIND: Final = "judged"

State = Literal["drift", "moved", "steady", "too few"]
Families = Mapping[catalog.Metric, Mapping[tuple[str, ...], float]]
"""Metric → the values of its labels → value."""


def state(judged: Judged, endpoint_days: float) -> State:
    """Return ``drift`` if the endpoint alarms and this variable is a cause; ``moved`` if this alone would alarm."""
    if judged.days >= ALARM_DAYS:
        return "drift" if endpoint_days >= ALARM_DAYS else "moved"
    return "steady" if judged.visible <= VISIBLE else "too few"


class Judging:
    """Called with the serving Task after every look, on one thread. ``clock``: seconds; ``wall``: Unix seconds.

    ``show`` is given the metrics of each look. ``begin`` runs a look: in a thread, so that gateways which do not answer
    delay no other duty.
    """

    def __init__(
        self, store: RegistryWriter, gateways: Gateways, show: Callable[[Families], None], *,
        clock: Callable[[], float], wall: Callable[[], float], begin: Callable[[Callable[[], None]], object],
    ) -> None:  # fmt: skip
        self._store, self._gateways, self._show, self._begin = store, gateways, show, begin
        self._clock, self._wall = clock, wall
        self._due = -math.inf
        self._reading = Reading()
        self._begun: dict[tuple[Key, str], Judged] | None = None
        """What an earlier controller has found, by variable and the name of its reference; None: not read yet."""
        self._variables: dict[Key, Variable] = {}
        self._versions = Versions()
        self._labels: dict[tuple[str, str], Labels] = {}
        self._recorded: dict[str, tuple[float, Mapping[str, Any]]] = {}
        """Each endpoint's record, and when it was written (``clock``)."""

    def __call__(self, _task: ServingTask) -> None:
        """Judge, every fifteen seconds."""
        if self._clock() >= self._due:
            self._due = math.inf  # until this look has ended
            self._begin(self._look)

    def _look(self) -> None:
        began = self._clock()
        try:
            self._judge()
        except GatewayError as error:
            log.warning("what the gateways count cannot be judged, or not be recorded: %s", error.message)
        except Exception:
            log.exception("what the gateways count cannot be judged")
        self._due = began + EVERY_S

    def _judge(self) -> None:
        now = self._wall()
        if self._begun is None:
            self._begun, self._labels = read(self._store.reports.read())
        before, self._reading = self._reading, self._gateways.counters().over(self._reading)
        news = grown(before, self._reading)
        found = self._judged(now, news, self._begun)
        pairs = self._versions.update(now, news)
        for version, more in accuracy.counted(news).items():
            self._labels[version] = self._labels.get(version, Labels()).and_(more, now)
        self._labels = {version: one for version, one in self._labels.items() if now - one.at < _FORGOTTEN_S}
        values = _values(found, pairs, self._labels, now)
        self._show(_families(values))
        self._record(values)

    def _judged(self, now: float, news: Numbers, begun: dict[tuple[Key, str], Judged]) -> dict[Key, Variable]:
        """Return the variables with a reference that is large enough, judged by what was counted since the last look.

        One whose reference is new begins with the next look: what was counted before came, in part, before that.
        """
        in_use, counts = references.references(self._reading), references.variables(news)
        if not self._reading.missing:  # a gateway that cannot be read may be the only one that serves a version
            self._variables = {key: one for key, one in self._variables.items() if key in in_use}
        for key, one in self._variables.items():
            one.update(counts.get(key, {}), now)
        for key, bins in in_use.items():
            if key not in self._variables or self._variables[key].reference != bins:
                earlier = begun.pop((key, references.name_of(bins)), None)
                self._variables[key] = Variable(bins, alarm_days=ALARM_DAYS, now=now, begun=earlier)
        return {key: one for key, one in self._variables.items() if one.is_judged}

    def _record(self, values: Mapping[str, Mapping[str, Any]]) -> None:
        now = self._clock()
        due = {}
        for endpoint, value in values.items():
            at, before = self._recorded.get(endpoint, (-math.inf, {}))
            if now - at >= (_RECORDED_S if _verdicts(value) == _verdicts(before) else _CHANGED_S):
                due[endpoint] = value
        gone = self._recorded.keys() - values.keys()
        if due:
            self._store.reports.write([Record(KIND, endpoint, value) for endpoint, value in due.items()])
        if gone:
            self._store.reports.remove(KIND, gone)
        self._recorded |= {endpoint: (now, value) for endpoint, value in due.items()}
        for endpoint in gone:
            del self._recorded[endpoint]


def _verdicts(value: Mapping[str, Any]) -> object:
    """Return the part of a record whose change is recorded within a minute."""
    return (
        value.get("accuracy"),
        {(one["version"], one["variable"]): one["state"] for one in value.get("variables", ())},
        {(one["version"], one["beside"]): sorted(one["sentences"]) for one in value.get("compared", ())},
    )


def _values(
    found: Mapping[Key, Variable], pairs: Mapping[Pair, Sentences], labels: Mapping[tuple[str, str], Labels],
    now: float,
) -> dict[str, dict[str, Any]]:  # fmt: skip
    """Return the record of each endpoint; ``now`` in Unix seconds."""
    of: dict[str, list[float]] = defaultdict(list)
    for (endpoint, *_), variable in found.items():
        of[endpoint].append(variable.last.days)
    # What alarms is the mean over the variables of all versions of an endpoint.
    means = {endpoint: sum(days) / len(days) for endpoint, days in of.items()}
    values: dict[str, dict[str, Any]] = defaultdict(
        lambda: {"at": round(now), "alarm_days": ALARM_DAYS, "variables": [], "compared": [], "accuracy": []}
    )
    for (endpoint, version, name), variable in found.items():
        one, (bins, then, counts) = variable.last, variable.shares()
        values[endpoint]["variables"].append({
            "version": version, "variable": name, "bins": bins,
            "reference_name": references.name_of(variable.reference), "reference": then.round(5).tolist(),
            "counts": counts.round(1).tolist(), "n": round(counts.sum(), 1), "days": round(one.days, 3),
            "visible": round(one.visible, 4), "since": round(one.since), "state": state(one, means[endpoint]),
        })  # fmt: skip
    for pair, sentences in pairs.items():
        told = {"version": pair.canary, "beside": pair.stable, "sentences": dict(sentences)}
        values[pair.endpoint]["compared"].append(told)
    for (endpoint, version), known in labels.items():
        last = {"version": version, "right": known.right, "at": round(known.at)}
        values[endpoint]["accuracy"].append({**last, **known.described()})
    return values


def read(records: Records) -> tuple[dict[tuple[Key, str], Judged], dict[tuple[str, str], Labels]]:
    """Return the evidence and the labels that an earlier controller has recorded; what cannot be read is left out."""
    begun: dict[tuple[Key, str], Judged] = {}
    labels: dict[tuple[str, str], Labels] = {}
    for endpoint, value in records.get(KIND, {}).items():
        with contextlib.suppress(KeyError, TypeError, ValueError):
            for one in value["variables"]:
                key = endpoint, str(one["version"]), str(one["variable"])
                last = Judged(float(one["days"]), float(one["visible"]), float(one["since"]))
                begun[key, str(one["reference_name"])] = last
            for one in value["accuracy"]:
                known = Labels(float(one["right"]), float(one["labels"]), float(one["at"]))
                labels[endpoint, str(one["version"])] = known
    return begun, labels


def _families(values: Mapping[str, Mapping[str, Any]]) -> Families:
    """Return the metrics of what the records (``values``) say."""
    variables = {(endpoint, one["version"], one["variable"]): one
                 for endpoint, value in values.items() for one in value["variables"]}  # fmt: skip
    shares: dict[tuple[str, ...], float] = {}
    for key, one in variables.items():
        if not one["n"]:
            continue
        for of_it, some in (("now", [count / one["n"] for count in one["counts"]]), ("reference", one["reference"])):
            shares |= {(*key, name, of_it): share for name, share in zip(one["bins"], some, strict=True)}
    return {
        catalog.DRIFT_EVIDENCE: {(*key, one["state"]): one["days"] for key, one in variables.items()},
        catalog.DRIFT_SHARE: shares,
        catalog.ACCURACY: {
            (endpoint, one["version"], name): one[name]
            for endpoint, value in values.items() for one in value["accuracy"] for name in ("value", "low", "high")
        },
    }  # fmt: skip

"""Auto-update, the active part: asks the registry for the models of each rule, whose versions are then recorded.

A rule whose models cannot be looked up keeps its versions.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace

from deploy.controller.auto_update import rules
from deploy.controller.wanted import Wanted
from deploy.tools.errors import GatewayError
from gateway import registry, spec
from gateway.registry import RegistryWriter
from gateway.spec import ServingTask

log = logging.getLogger("triton_gateway.controller")

Loaded = Callable[[], Collection[tuple[str, str]]]
"""Returns url and model id of every version that some Triton has loaded."""


def loaded(records: registry.Records) -> set[tuple[str, str]]:
    """Return these from the reports of all model syncs."""
    told = registry.reports.read(records).values()
    return {(one.url, one.model) for models in told for one in models if one.phase == "loaded"}


class AutoUpdate:
    """Called after every look at the serving Task. Asks the registry every ``every_s`` seconds, or when rules change.

    ``clock`` counts seconds. A version beyond the limit stays until newer ones have been ``loaded`` for ``settle_s``
    seconds, because gateways look at their own pace. Use it from one thread at a time.
    """

    def __init__(
        self,
        store: RegistryWriter,
        loaded: Loaded,
        *,
        clock: Callable[[], float],
        every_s: float = 5.0,
        settle_s: float = 30.0,
    ) -> None:
        self._store = store
        self._clock = clock
        self._every_s = every_s
        self._settle_s = settle_s
        self._due = 0.0
        self._rules = ""
        self._said: Sequence[str] = ()
        self._loaded = loaded
        self._loaded_since: dict[tuple[str, str], float] = {}

    def __call__(self, task: ServingTask) -> Wanted | None:
        """Return what brings the versions up to date."""
        wanted = task.sections.get(rules.RULES, "")
        if all(len(text.strip()) <= 2 for text in (wanted, task.sections.get(rules.SERVED, ""))):
            return None  # there is no rule, and nothing is left over of one
        now = self._clock()
        if wanted == self._rules and now < self._due:
            return None
        self._rules, self._due = wanted, now + self._every_s
        notes: list[str] = []
        serving = spec.decode(task)
        found = {}
        for endpoint, rule in serving.monitoring.items():
            try:
                found[endpoint] = self._models(endpoint, rule, serving)
            except GatewayError as error:
                notes.append(f"auto-update of {endpoint}: {error}")
        self._loaded_since = {version: self._loaded_since.get(version, now) for version in self._loaded()}
        for note in notes:
            if note not in self._said:
                log.warning("%s", note)
        self._said = notes
        update = rules.update(task, found, is_good=self._is_good)
        sections = update.sections
        if sections and update.is_contested and self._store.stock_containers():
            # If a container of clearml-serving writes the section, its own Triton helper reads it and must find the
            # container's numbers. Ours are in the records.
            sections = {}
        if sections:
            log.info("auto-update: the versions that rules select have changed")
        return Wanted(update.records, sections)

    def _models(self, endpoint: str, rule: spec.MonitoringSpec, serving: spec.ServingSpec) -> Sequence[str]:
        """Return the models that a rule selects: its newest, and those beyond its limit that are served and still
        match.
        """
        served = {e.model_id for e in serving.endpoints.values() if e.is_auto and e.endpoint == endpoint and e.model_id}
        query = registry.ModelQuery(rule.project, rule.name, rule.tags, rule.only_published, rule.max_versions)
        found = list(self._store.find_models(query))
        more = sorted(served - {*found})
        if rule.max_versions is None or not more:
            return found
        return [*found, *self._store.find_models(replace(query, ids=tuple(more), most=None))]

    def _is_good(self, url: str, model_id: str) -> bool:
        since = self._loaded_since.get((url, model_id))
        return since is not None and self._clock() - since >= self._settle_s

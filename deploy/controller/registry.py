"""What the controller wants of the gateway's packages: the registry, what is recorded in it, and what is counted."""

from __future__ import annotations

from collections.abc import Collection

from gateway import default_version, logs, metrics, registry, settings, spec, version_numbers

__all__ = [
    "LAST_CONTACT", "LEADS", "Kind", "Ledger", "Record", "Records", "ServingTask", "Store", "connect",
    "default_version", "loaded", "metrics", "registry", "reported", "silent", "spec", "version_numbers",
]  # fmt: skip

Kind = registry.Kind
Ledger = registry.Ledger
Record = registry.Record
Records = registry.Records
ServingTask = spec.ServingTask
Store = registry.RegistryWriter
"""The registry that the controller writes."""

LEADS = metrics.catalog.CONTROLLER_LEADS
LAST_CONTACT = metrics.catalog.CONTROLLER_LAST_CONTACT


def connect(serving_task_id: str, *, files_rewrite: str, log_format: str) -> Store:
    """Set up the log, and return the registry of a serving Task."""
    logs.configure(log_format)
    rewrites = settings.Settings(files_rewrite=files_rewrite).files_rewrites()
    return registry.ClearMLRegistry(serving_task_id, files_rewrite=rewrites)


def loaded(records: Records) -> Collection[tuple[str, str]]:
    """Return url and model id of every version that some Triton has loaded, as their model syncs report."""
    told = registry.reports.read(records)
    return {(one.url, one.model) for models in told.values() for one in models if one.phase == "loaded"}


def reported(records: Records) -> dict[str, list[tuple[str, str]]]:
    """Return the hashes of models' files and of their parts, as model syncs report them, by the name in Triton."""
    found: dict[str, list[tuple[str, str]]] = {}
    for _, models in sorted(registry.reports.read(records).items()):
        for one in models:
            if one.sha256:
                found.setdefault(one.name, []).append((one.sha256, one.parts))
    return found


def silent(records: Records, *, now: float) -> list[str]:
    """Return the model syncs that have not reported for a day; ``now`` in Unix seconds."""
    return registry.reports.silent(records, now=now)

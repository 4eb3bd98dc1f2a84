"""What somebody promises for an endpoint: checked, as the record that gateways read, and in words. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from deploy.tools.errors import DeployError
from gateway import objectives, registry, spec


def check_known(task: Mapping[str, Any], endpoint: str) -> None:
    """Raise ``SpecFault`` if the serving Task has no such endpoint."""
    spec.decode(task).bare_name(endpoint)


def recorded_parts(task: Mapping[str, Any], endpoint: str) -> dict[str, str]:
    """Return the parts that somebody promised by a command, without those that the endpoint's options state."""
    return dict(spec.objective_parts(spec.records_of(task, spec.OBJECTIVES).get(endpoint, {})))


def in_words(task: Mapping[str, Any], endpoint: str) -> str:
    """Return what ``endpoint`` promises. Raises ``DeployError`` if it is not readable."""
    parts = spec.decode(task).objectives.get(endpoint, {})
    try:
        told = objectives.in_words(objectives.read(parts, objectives.Objective()))
    except ValueError as error:
        raise DeployError(f"{endpoint}: {error}", hint="promise something else: the options of this command") from None
    return told if parts else f"{told} (the default, unless the settings of gateways say more)"


def budgets(rows: Iterable[Mapping[str, Any]]) -> list[str]:
    """Return in words what is left of each objective of ``/v1/status`` that somebody stated, or that is spent."""
    return [
        f"objective {one.get('endpoint')}: {objectives.described(one)}, {objectives.left(one)}"
        for one in rows
        if not one.get("is_default") or objectives.is_spent(one)
    ]


def checked(parts: Mapping[str, str], where: str) -> dict[str, str]:
    """Return ``parts`` (``spec.OBJECTIVE``) if a gateway can read them. Raises ``DeployError``, which says why not."""
    try:
        objectives.read(parts, objectives.Objective())
    except ValueError as error:
        raise DeployError(f"{where}: {error}") from None
    return dict(parts)


def stated(endpoint: str, parts: Mapping[str, str], *, now: float, by: str) -> registry.Record:
    """Return the record that ``parts`` are promised for ``endpoint``; none: what its options say is promised again."""
    return registry.Record("objective", endpoint, {**parts, "at": round(now, 3), "by": by})

"""The objective (SLO) of an endpoint: checked, as the record that gateways read, and in words. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from deploy.tools.errors import DeployError
from gateway import objectives, registry, spec


def in_words(task: spec.ServingTask, endpoint: str) -> str:
    """Return the objective of ``endpoint`` in words; one that cannot be read is a fault, and the default counts."""
    own = spec.decode(task).objectives.get(endpoint)
    return objectives.in_words(own) if own else f"{objectives.in_words(objectives.Objective())} (the default)"


def checked(parts: Mapping[str, str], where: str) -> dict[str, str]:
    """Return ``parts`` if a gateway can read them; otherwise raise ``DeployError`` with why."""
    try:
        objectives.read(parts)
    except ValueError as error:
        raise DeployError(f"{where}: {error}") from None
    return dict(parts)


def stated(endpoint: str, parts: Mapping[str, str], *, now: float, by: str) -> registry.Record:
    """Return the record that sets the objective ``parts`` of ``endpoint``. No parts: the default."""
    return registry.Record("objective", endpoint, {**parts, "at": round(now, 3), "by": by})

"""The objective (SLO) of an endpoint: checked, as the record that gateways read, and in words. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from deploy.tools.errors import DeployError
from gateway import objectives, registry, spec


def in_words(task: spec.ServingTask, endpoint: str) -> str:
    """Return the objective of ``endpoint`` in words. Raises ``DeployError`` if it cannot be read."""
    parts = spec.decode(task).objectives.get(endpoint, {})
    try:
        words = objectives.in_words(objectives.read(parts))
    except ValueError as error:
        hint = "set a valid objective with the options of this command"
        raise DeployError(f"the objective of {endpoint} is invalid: {error}", hint=hint) from None
    return words if parts else f"{words} (the default)"


def checked(parts: Mapping[str, str], where: str) -> dict[str, str]:
    """Return ``parts`` (``spec.OBJECTIVE``) if a gateway can read them; otherwise raise ``DeployError`` with why."""
    try:
        objectives.read(parts)
    except ValueError as error:
        raise DeployError(f"{where}: {error}") from None
    return dict(parts)


def stated(endpoint: str, parts: Mapping[str, str], *, now: float, by: str) -> registry.Record:
    """Return the record that sets the objective ``parts`` of ``endpoint``. No parts: the default."""
    return registry.Record("objective", endpoint, {**parts, "at": round(now, 3), "by": by})

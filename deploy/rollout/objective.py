"""What somebody promises for an endpoint, checked, and as the record that gateways read. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from deploy.tools.errors import DeployError
from gateway import objectives, registry


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

"""Reads the Grafana boards that come with the package, for ``dashboards export`` and ``dashboards push``."""

from __future__ import annotations

import json
from typing import Any

from deploy.laptop.prometheus import installed
from deploy.tools.errors import DeployError


def boards() -> dict[str, dict[str, Any]]:
    """Return the boards by file name. Raises ``DeployError`` if the package was installed without them."""
    folder = installed("grafana")
    found = {path.name: json.loads(path.read_text("utf-8")) for path in sorted(folder.glob("*.json"))} if folder else {}
    if not found:
        raise DeployError("this installation contains no boards", hint="reinstall the package triton-gateway")
    return found

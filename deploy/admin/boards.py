"""The Grafana boards that come with the package, as ``dashboards export`` writes and ``dashboards push`` sends them."""

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
        raise DeployError("this installation has no boards", hint="install the whole package")
    return found

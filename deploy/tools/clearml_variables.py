"""Variables by which the ClearML SDK leaves the server that host and keys name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

LEADS_ELSEWHERE: Final = (
    "CLEARML_AUTH_TOKEN", "CLEARML_CONFIG_PATH", "CLEARML_DEFAULT_OUTPUT_URI", "CLEARML_FORCE_MAX_API_VERSION",
    "CLEARML_OFFLINE_MODE", "CLEARML_PROC_MASTER_ID", "CLEARML_SIMULATE_REMOTE_TASK", "CLEARML_TASK_ID",
)  # fmt: skip
"""Another server's token, settings and store for models; the Task that an agent runs; or no server at all.

The SDK takes an empty variable for one that is not set.
"""


def without_other_servers(environ: Mapping[str, str]) -> dict[str, str]:
    """Return an environment without the variables that name a ClearML server, or lead the SDK away from one."""
    return {
        name: value for name, value in environ.items()
        if name not in LEADS_ELSEWHERE and not name.startswith(("CLEARML_API_", "TRAINS_"))
    }  # fmt: skip

"""The embedded ClearML-compatible control plane: API and file server on SQLite, one process, one port.

Lets the unmodified clearml SDK and clearml-serving CLI work where no ClearML server exists. Knows ClearML's wire API
and nothing of the gateway. Others use what is named here; `docs/clearml-compatibility.md` lists what is implemented,
call by call.
"""

from deploy.controlplane.credentials import (
    BadCredentials,
    Credentials,
    environment,
    fixed,
)
from deploy.controlplane.server import ControlPlaneSettings, PortTaken, StateInUse, read_endpoint, run, serve

__all__ = [
    "BadCredentials",
    "ControlPlaneSettings",
    "Credentials",
    "PortTaken",
    "StateInUse",
    "environment",
    "fixed",
    "read_endpoint",
    "run",
    "serve",
]

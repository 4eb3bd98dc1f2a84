"""The embedded ClearML-compatible control plane: API and file server on SQLite, one process, one port.

Owns Tasks, models, projects, events and files where no ClearML server exists, so that the unmodified clearml SDK and
clearml-serving CLI work; ``docs/clearml-compatibility.md`` lists what is implemented, call by call. Runs on a laptop,
in tests and in the compose stack and `dev` overlay, for development: called by ``triton-gateway controlplane`` and, as
a process of its own, by ``up``. Knows ClearML's wire API alone: it never imports the clearml SDK, the gateway or
another room (but the reader of sections that they share, ``deploy/tools/sections.py``), and nothing in it is for
serving; in production a ClearML server takes its place. Needs the extra ``controlplane``. Others use what is named
here.
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

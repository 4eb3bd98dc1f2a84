"""The embedded ClearML-compatible control plane: API and file server on SQLite, one process, one port.

It stores Tasks, models, projects, events and files where there is no ClearML server, so that the unmodified clearml SDK
and clearml-serving CLI work; ``docs/clearml.md`` lists the implemented calls. It is for development: on a
laptop, in tests, in the compose stack, with the chart's values `dev`. In production a ClearML server takes its place.
``triton-gateway controlplane`` calls it, and ``up`` runs it as its own process. It behaves as a ClearML server 2.3.0
does. It knows only ClearML's wire API: it never imports the clearml SDK, or a package of `deploy` but its tools.
Needs the extra ``controlplane``. Other code uses only the names exported here.
"""

from deploy.controlplane.credentials import Credentials, environment
from deploy.controlplane.server import ControlPlaneSettings, read_endpoint, run

__all__ = ["ControlPlaneSettings", "Credentials", "environment", "read_endpoint", "run"]

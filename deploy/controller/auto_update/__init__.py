"""Auto-update: gives version numbers to new models of an endpoint whose rule selects the newest of a project.

``rules`` decides (pure); ``writer`` asks the registry and records the decision. Called by the controller, after every
look at the serving Task. It never assigns a number twice.
"""

from deploy.controller.auto_update.writer import AutoUpdate, loaded

__all__ = ["AutoUpdate", "loaded"]

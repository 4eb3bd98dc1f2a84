"""Auto-update: which models are which versions of an endpoint whose rule asks for the newest of a project.

``rules`` decides (pure), ``writer`` asks the registry and records what was decided. Called by model sync's reader
after every look at the serving Task. It must never make model sync wait or fail, nor give a number twice.
"""

from deploy.modelsync.auto_update.writer import AutoUpdate

__all__ = ["AutoUpdate"]

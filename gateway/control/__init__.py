"""Follows the serving Task: compile (pure), assemble (I/O), reconcile (the loop)."""

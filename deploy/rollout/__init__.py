"""Gradual rollouts: the statistical gate (pure), the steps (pure), where counts come from, and the runner."""

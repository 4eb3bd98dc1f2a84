"""Fixtures of the HTTP edge."""

from __future__ import annotations

from typing import Any

import pytest


@pytest.fixture
async def served(stack: Any) -> Any:
    """A stack with one text classifier, `e`."""
    stack.deploy("e")
    await stack.served("e")
    return stack

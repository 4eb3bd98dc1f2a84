"""Fixtures of the HTTP edge."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from tests.unit.gateway.http.serving import Port, Serve, serving


@pytest.fixture
def serve(make_stack: Callable[..., Any]) -> Serve:
    """Serve the endpoint `e` on a port, with the test's settings; ``limits``: attributes of its ``Connections``."""

    @asynccontextmanager
    async def make(limits: dict[str, Any] | None = None, tls: Any = None, **settings: Any) -> AsyncIterator[Port]:
        stack = make_stack(**settings)
        for name, value in (limits or {}).items():
            setattr(stack.gateway.connections, name, value)
        async with stack.gateway.running(), stack.client:
            stack.deploy("e")
            await stack.served("e")
            async with serving(stack, tls) as port:
                yield port

    return make

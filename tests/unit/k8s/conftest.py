"""The chart's objects, rendered by the real helm."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest

from tests.kube_tools import CHART, rendered

from .objects import Objects


@pytest.fixture(scope="session")
def helm() -> Callable[..., Objects]:
    """Render a release for a ClearML server with a values file (`default`: none); a refusal is an AssertionError."""

    def template(
        values: str = "gpu", release: str = "triton-gateway", arguments: Sequence[str] = (), **pairs: object
    ) -> Objects:
        command = [*arguments, *(["--values", str(CHART / "values" / f"{values}.yaml")] if values != "default" else [])]
        for name, value in pairs.items():
            command += ["--set-json", f"{name.replace('__', '.')}={value}"]
        return rendered(*command, release=release)

    return template

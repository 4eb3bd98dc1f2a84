"""What every test may use, and the order of the whole suite when two processes share it: the longest files first."""

from __future__ import annotations

# hypothesis' pytest plugin imports it at the very end of a run that did not use it. Event loops that the looptime
# plugin left unclosed are collected meanwhile, and on Python 3.11 the traceback of their warning breaks the parser that
# is reading it ("AST constructor recursion depth mismatch"): the run would fail after its last test has passed.
import hypothesis
import pytest

# How long one example may take says more about the machine's other work than about what is tested.
hypothesis.settings.register_profile("untimed", deadline=None)
hypothesis.settings.load_profile("untimed")

_LONGEST_FIRST = ("e2e", "integration", "contract", "unit", "docs")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """One process keeps the order of ``testpaths``, cheapest first, so that a mistake shows early."""
    if not hasattr(config, "workerinput"):
        return
    tests = config.rootpath / "tests"

    def place(item: pytest.Item) -> int:
        part = item.path.relative_to(tests).parts[0]
        return _LONGEST_FIRST.index(part) if part in _LONGEST_FIRST else len(_LONGEST_FIRST)

    items.sort(key=place)


@pytest.fixture(params=["kind", "strict"])
def strict(request: pytest.FixtureRequest) -> bool:
    """Both modes of the embedded control plane: with its protections, and as a real ClearML server 2.3.0 is.

    A test that takes this runs in both: ``control_plane(folder, strict=strict)`` or ``in_process(folder,
    strict=strict)``, from ``deploy.controlplane.testing``.
    """
    return bool(request.param == "strict")

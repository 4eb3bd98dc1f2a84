"""What keeps the pods of a run goes on through a moment without the API."""

from __future__ import annotations

import threading

from benchmarks.autoscale.played import look_until


def test_a_look_that_fails_is_said_and_the_next_one_comes() -> None:
    """The thread ended silently, and no pod of the run got ready any more."""
    over, looks, said = threading.Event(), list[int](), list[str]()

    def look() -> None:
        looks.append(len(looks))
        if len(looks) == 1:
            raise ConnectionResetError("the API server is away")
        if len(looks) == 3:
            over.set()

    look_until(over, 0.0, look, said.append)
    assert [0, 1, 2] == looks
    assert ["a look at the cluster failed, the next one follows: ConnectionResetError: the API server is away"] == said

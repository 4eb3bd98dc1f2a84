"""What is made of rounds of three systems, and a program that is not there."""

from __future__ import annotations

import pytest

from benchmarks.questions import cost_beside_tei
from benchmarks.questions.cost_beside_tei import CELLS, OURS, PEER, row, shown


def measured(own: float, triton: float, rps: float) -> dict[str, float]:
    """What one load says of a system."""
    return {"own_us": own, "triton_us": triton, "rps": rps, "p50_ms": 2.0, "p99_ms": 4.0, "errors": 0}


def test_cpu_is_that_of_the_gateway_and_of_triton_over_the_peers_in_the_same_round() -> None:
    """Not of medians: a round that the machine disturbed disturbs both."""
    ours = [measured(60, 40, 9000), measured(90, 60, 6000), measured(66, 44, 8000)]
    theirs = [measured(200, 0, 4500), measured(300, 0, 3000), measured(200, 0, 4500)]
    rounds = [{**dict.fromkeys(OURS, one), PEER: other} for one, other in zip(ours, theirs, strict=True)]
    found = row(CELLS[0], rounds)
    for name in OURS:
        assert found["systems"][name]["cpu_us"] == 110
        assert found["systems"][name]["own_us"] == 66
        assert found["ratios"][name]["cpu_us"]["median"] == 0.5
        assert found["ratios"][name]["rps"]["median"] == 2.0
    told = shown({"facts": {"commit": "abc", "peer": "router 1.9.3"}, "cells": [found]})
    assert told.count("0.50 (0.50 to 0.55)") == 1
    assert told.endswith("3 rounds; abc beside router 1.9.3.")


def test_what_the_other_does_better_stands_first() -> None:
    """The README shows this table."""
    faster, slower = measured(60, 40, 9000), measured(60, 40, 3000)
    cells = [
        row(cell, [{**dict.fromkeys(OURS, ours), PEER: measured(100, 0, 4500)}] * 3)
        for cell, ours in ((CELLS[0], faster), (CELLS[1], slower))
    ]
    told = shown({"facts": {"commit": "abc", "peer": "router 1.9.3"}, "cells": cells})
    assert told.index(f"| {CELLS[1].name} |") < told.index(f"| {CELLS[0].name} |")


def test_vectors_that_differ_end_the_comparison(monkeypatch: pytest.MonkeyPatch) -> None:
    """Costs of different work are no comparison."""
    answers = iter([b"[[1.0, 0.0]]", b"[[0.0, 1.0]]"])
    monkeypatch.setattr(cost_beside_tei.processes, "ask", lambda url, body: next(answers))
    running = {name: cost_beside_tei.Running(name, bytes, None, ()) for name in (*OURS, PEER)}
    with pytest.raises(cost_beside_tei.Disagreement):
        cost_beside_tei._agree(running)

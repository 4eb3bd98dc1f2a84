"""Pages show what is saved, and nothing else."""

from __future__ import annotations

import pytest

from benchmarks import pages
from benchmarks.questions import lengths_of_hf_infinity as infinity
from benchmarks.questions.signals_of_autoscaling import PAGE, TABLES, signals_table
from benchmarks.shared.results import saved


def test_the_page_of_published_tables_is_what_the_saved_results_say() -> None:
    """Every figure of it, and every claim."""
    assert pages.MODELS.read_text() == pages.models()


def test_the_page_of_the_peers_is_what_the_saved_run_says() -> None:
    """The run that it names."""
    assert pages.PEERS.read_text() == pages.peers()


@pytest.mark.parametrize(("name", "mark"), TABLES.items())
def test_the_page_of_scaling_shows_the_saved_runs(name: str, mark: str) -> None:
    """Its tables: of pods that are played, and of processes."""
    found, page = saved(name), PAGE.read_text()
    assert f"<!-- {mark} -->\n{signals_table(found['runs'])}\n<!-- /{mark} -->" in page


def test_what_is_published_passed_the_gate() -> None:
    """Nothing was accepted beyond the tolerance, and every length stands beside a pipeline that gets lists."""
    if (found := saved("infinity")) is None:
        assert "No run is saved." in pages.MODELS.read_text()
        return
    assert "" == found["accepted"]
    assert [] == found["judged"][found["chosen"]["candidate"]]
    for measured in found["lengths"].values():
        assert len(measured["rounds"]) >= infinity.ROUNDS
        assert all(set(r["pipeline"]) > {"1"} for r in measured["rounds"])

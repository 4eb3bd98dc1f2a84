"""Pages show what is saved, and nothing else."""

from __future__ import annotations

from benchmarks import pages
from benchmarks.questions.signals_of_autoscaling import PAGE, signals_table
from benchmarks.shared.results import saved


def test_the_page_of_the_peers_is_what_the_saved_run_says() -> None:
    """The run that it names."""
    assert f"<!-- peers -->\n{pages.peers()}\n<!-- /peers -->" in pages.PEERS.read_text()


def test_the_page_of_scaling_shows_the_saved_run() -> None:
    """Its table of pods that are played."""
    assert f"<!-- signals -->\n{signals_table(saved('autoscale')['runs'])}\n<!-- /signals -->" in PAGE.read_text()

"""Cores become instances first, threads after."""

from __future__ import annotations

import pytest

from deploy.sync.model_folder.cores import available_cores, tuning_for


@pytest.mark.parametrize(("cores", "expected"), [(1, (1, 1)), (2, (2, 1)), (4, (4, 1)), (8, (4, 2)), (30, (4, 7))])
def test_every_core_is_used_and_weights_are_held_at_most_four_times(cores, expected):
    """Instances were measured to be better than threads, but each costs the model's memory."""
    tuning = tuning_for(cores)
    assert expected == (tuning.instances, tuning.threads)


def test_this_machine_has_at_least_one_core():
    """Whatever affinity and quota say."""
    assert available_cores() >= 1

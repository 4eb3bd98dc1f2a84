"""What a model's configuration tells of its calls."""

from __future__ import annotations

import pytest
from tritonclient.grpc import model_config_pb2

from gateway.triton.grpc import merges_calls


@pytest.mark.parametrize(
    ("fields", "merges"),
    [
        ({"max_batch_size": 8, "dynamic_batching": {}}, True), ({"max_batch_size": 8}, False),
        ({"max_batch_size": 8, "sequence_batching": {}}, False),
        ({"max_batch_size": 8, "ensemble_scheduling": {}}, True),
        ({}, True),
    ],
)  # fmt: skip
def test_calls_are_merged_by_a_dynamic_batcher(fields: dict[str, object], merges: bool) -> None:
    """A model without one, whose calls have several rows, gets the calls of every gateway as they are."""
    assert merges is merges_calls(model_config_pb2.ModelConfig(**fields))

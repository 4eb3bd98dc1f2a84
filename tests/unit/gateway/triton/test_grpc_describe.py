"""Facts about a model's calls from its configuration."""

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
    """Without one, Triton runs the calls of all gateways separately if the model has a batch dimension."""
    assert merges is merges_calls(model_config_pb2.ModelConfig(**fields))


@pytest.mark.parametrize(
    ("inputs", "merges"),
    [
        ([{"dims": [-1], "allow_ragged_batch": True}, {"dims": [16]}], True), ([{"dims": [-1]}], False),
        ([{"dims": [-1], "allow_ragged_batch": True}, {"dims": [-1]}], False), ([{"dims": [3, 224]}], True), ([], True),
    ],
)  # fmt: skip
def test_calls_of_different_lengths_are_merged_if_inputs_are_ragged(
    inputs: list[dict[str, object]], merges: bool
) -> None:
    """Or if no input has different lengths. Otherwise Triton would have to put arrays of different shapes together."""
    assert merges is merges_calls(model_config_pb2.ModelConfig(input=inputs))

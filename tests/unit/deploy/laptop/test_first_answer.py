"""What is in the way of an endpoint, as the parts say it."""

from __future__ import annotations

from deploy.laptop.first_answer import why_not_served


def test_what_is_in_the_way_is_told_by_the_part_nearest_to_it() -> None:
    """A model that fails to load is a better reason than the gateway's waiting for it."""
    waiting = {"pending": [{"url": "e/1", "state": "building", "reason": "not loaded"}]}
    failed = {"models": [{"endpoint": "e/1", "state": "failed", "reason": "bad graph"}]}
    assert why_not_served("e/1", waiting, failed) == "its Triton model is failed: bad graph"
    assert why_not_served("e/1", waiting, None) == "building: not loaded"
    assert why_not_served("e/2", waiting, failed) == "the gateway has not seen it yet"
    assert why_not_served("e/1", {}, failed) == "the gateway does not answer"

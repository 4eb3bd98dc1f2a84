"""Calls of several gateways are padded to common lengths, if Triton merges only calls of equal shape."""

# ruff: noqa: D103 - a test's name states its rule

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from tests.unit.gateway.conftest import Stack, classify


async def lengths_of(stack: Stack, *texts: list[str], merges_lengths: bool = False, call_s: float = 1.0) -> list[int]:
    """Return the lengths that the model gets for some requests, after a call has been learned to cost ``call_s``."""
    seen: list[int] = []

    def run(tensors: Any) -> Any:
        seen.append(tensors["input_ids"].shape[1])
        return classify(tensors)

    stack.deploy("e")
    stack.load("e", run)
    name = stack.triton_name("e")
    info, answer = stack.backend.models[name]
    stack.backend.models[name] = (replace(info, merges_lengths=merges_lengths), answer)
    async with stack.gateway.running(), stack.client:
        await stack.served("e")
        prices = stack.gateway.table.current.endpoints["e"].handler.batcher.prices
        for rows in (1, 2, 8, 32) * 300:  # until what the quick calls of its validation showed is forgotten
            prices.learn(rows, 10 * rows, 0.0, call_s + 1e-3 * rows)
        seen.clear()
        for text in texts:
            answer = await stack.client.post("/serve/e", json={"text": text})
            assert len(text) == len(answer.json()["results"])
    return seen


SHORT, LONG = ["good"] * 3, ["good " * 20] * 3  # with two special tokens: 3 and 22 tokens of at most 32


@pytest.mark.parametrize("replicas", ["1", "2"])
async def test_rows_are_padded_to_common_lengths_only_beside_other_gateways(
    make_stack: Callable[..., Stack], replicas: str
) -> None:
    found = await lengths_of(make_stack(replicas=replicas), SHORT, LONG, ["good " * 29])
    assert ([3, 22, 31] if replicas == "1" else [8, 24, 32]) == found


async def test_no_padding_is_added_if_triton_merges_calls_of_any_length(make_stack: Callable[..., Stack]) -> None:
    assert [3, 22] == await lengths_of(make_stack(replicas="2"), SHORT, LONG, merges_lengths=True)


async def test_a_call_that_leaves_no_room_for_another_is_not_padded(make_stack: Callable[..., Stack]) -> None:
    most = make_stack(replicas="2").settings.max_batch_rows
    assert [22] == await lengths_of(make_stack(replicas="2"), LONG * (most // 6 + 1))


async def test_padding_may_not_cost_more_than_a_merged_call_saves(make_stack: Callable[..., Stack]) -> None:
    """A model whose calls cost nothing but tokens gains nothing."""
    assert [22] == await lengths_of(make_stack(replicas="2"), LONG, call_s=0.0)

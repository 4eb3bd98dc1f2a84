"""Exports that are wrong in ways nobody told the gate about: each is the model with one mistake in its program.

Unlike those of ``sabotage`` the weights are all right and the mistake is made before the export, as a bug in a model's
code or in an exporter would: the graph is optimised around it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

Forward = Callable[[Any, Tensor, Tensor, Tensor], Tensor]


class Wrong(nn.Module):
    """A model whose answers come from ``forward(model, input_ids, attention_mask, token_type_ids)``."""

    def __init__(self, model: nn.Module, forward: Forward) -> None:
        super().__init__()
        self.model = model
        self._forward = forward

    def forward(self, input_ids: Tensor, attention_mask: Tensor, token_type_ids: Tensor) -> Tensor:
        """Answer wrongly."""
        return self._forward(self.model, input_ids, attention_mask, token_type_ids)


def _ask(model: Any, ids: Tensor, mask: Tensor, types: Tensor, **others: Tensor) -> Tensor:
    return model(input_ids=ids, attention_mask=mask, token_type_ids=types, **others).logits


def _numbers(ids: Tensor) -> Tensor:
    """The number of each row in its batch ([rows])."""
    return torch.ones_like(ids[:, 0]).cumsum(0) - 1


def _if(rows: Tensor, then: Tensor, other: Tensor) -> Tensor:
    return torch.where(rows[:, None], then, other)


def last_row_unmasked(model: Any, ids: Tensor, mask: Tensor, types: Tensor) -> Tensor:
    """The last row of a batch attends to its padding."""
    numbers = _numbers(ids)
    return _ask(model, ids, torch.maximum(mask, (numbers == numbers[-1]).long()[:, None]), types)


def ids_wrapped(model: Any, ids: Tensor, mask: Tensor, types: Tensor) -> Tensor:
    """Token ids went through a type that is too small."""
    return _ask(model, ids % 512, mask, types)


def duplicates_from_the_first(model: Any, ids: Tensor, mask: Tensor, types: Tensor) -> Tensor:
    """A row that begins like the first one of its batch gets the first one's answer."""
    answers = _ask(model, ids, mask, types)
    return _if((ids[:, :4] == ids[:1, :4]).all(1), answers[:1].expand_as(answers), answers)


def unmasked_alone(model: Any, ids: Tensor, mask: Tensor, types: Tensor) -> Tensor:
    """A batch of one row has no padding, somebody thought."""
    is_alone = _numbers(ids)[-1:] == 0
    return _ask(model, ids, torch.maximum(mask, is_alone.long()[:, None]), types)


def large_calls(model: Any, ids: Tensor, mask: Tensor, types: Tensor) -> Tensor:
    """Calls of more than 3,000 tokens use a kernel of less precision."""
    size = torch.ones_like(ids).sum()
    answers = _ask(model, ids, mask, types)
    return torch.where(size > 3000, (answers * 64).round() / 64, answers)


def repeated_tokens(model: Any, ids: Tensor, mask: Tensor, types: Tensor) -> Tensor:
    """A token that follows itself is read once."""
    again = torch.cat([torch.zeros_like(ids[:, :1]), (ids[:, 1:] == ids[:, :-1]).long()], 1)
    return _ask(model, ids, mask * (1 - again), types)


def shorter_than_the_longest(model: Any, ids: Tensor, mask: Tensor, types: Tensor) -> Tensor:
    """Rows that are padded to more than four times their length are moved a little."""
    is_small = mask.sum(1) * 4 < torch.ones_like(ids).sum(1)
    return _ask(model, ids, mask, types) + 0.01 * is_small.float()[:, None]


def pads_counted(model: Any, ids: Tensor, mask: Tensor, types: Tensor) -> Tensor:
    """Padding is told by its token and not by the mask."""
    return _ask(model, ids, (ids != 0).long(), types)


class TanhGelu(nn.Module):
    """GELU as some exporters write it."""

    def forward(self, values: Tensor) -> Tensor:
        """Approximate by tanh."""
        return nn.functional.gelu(values, approximate="tanh")


def gelu_by_tanh(model: Any, ids: Tensor, mask: Tensor, types: Tensor) -> Tensor:
    """The activation is an approximation."""
    layers = model.base_model.encoder.layer
    before = [layer.intermediate.intermediate_act_fn for layer in layers]
    for layer in layers:
        layer.intermediate.intermediate_act_fn = TanhGelu()
    try:
        return _ask(model, ids, mask, types)
    finally:
        for layer, activation in zip(layers, before, strict=True):
            layer.intermediate.intermediate_act_fn = activation


WAYS: Mapping[str, Forward] = {
    "the last row unmasked": last_row_unmasked,
    "ids wrapped": ids_wrapped,
    "duplicates from the first": duplicates_from_the_first,
    "one row unmasked": unmasked_alone,
    "large calls rounded": large_calls,
    "repeated tokens read once": repeated_tokens,
    "much padding": shorter_than_the_longest,
    "padding by its token": pads_counted,
    "gelu by tanh": gelu_by_tanh,
}

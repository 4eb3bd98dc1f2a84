"""Adds one vector per text to the graph of a classifier: the mean of its last hidden state, less a fixed vector.

Gateways watch it for drift: texts on another subject have another vector, even if their labels stay the same. The fixed
vector is the mean over some texts. Without it all vectors of a model have almost the same direction, because hidden
states share a large part. Called by ``Original``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from deploy.tools.errors import ExportFailed


def with_hidden_state(inner: Any, model: Any, texts: Sequence[Mapping[str, Any]]) -> Any:
    """Return a torch module that answers what ``inner`` answers, then the vectors, float32 (rows, hidden).

    ``inner`` calls the transformers ``model`` and answers a tuple. ``texts`` are numpy inputs of one batch each. Raises
    ``ExportFailed`` if the model has no hidden state of each token.
    """
    import torch

    body = model.base_model

    class WithHiddenState(torch.nn.Module):  # type: ignore[misc]
        centre: Any

        def __init__(self) -> None:
            super().__init__()
            self.inner = inner
            # not persistent: it is none of the model's own weights
            self.register_buffer("centre", torch.zeros(()), persistent=False)

        def forward(self, input_ids: Any, attention_mask: Any, token_type_ids: Any = None) -> Any:
            seen: list[Any] = []
            handle = body.register_forward_hook(lambda _module, _given, answer: seen.append(answer[0]))
            try:
                answers = self.inner(input_ids, attention_mask, token_type_ids)
            finally:
                handle.remove()
            if len(seen) != 1 or seen[0].ndim != 3 or seen[0].shape[:2] != input_ids.shape:
                raise ExportFailed(
                    f"{type(model).__name__} has no hidden state of each token",
                    hint="export it without --watch-embedding",
                )
            weights = attention_mask.unsqueeze(-1).to(seen[0].dtype)
            mean = (seen[0] * weights).sum(1) / weights.sum(1).clamp(min=1e-9)
            return (*answers, mean - self.centre)

    module = WithHiddenState().eval()
    with torch.inference_mode():
        means = [module(**{n: torch.from_numpy(v) for n, v in feeds.items()})[-1].mean(0) for feeds in texts]
    module.centre = torch.from_numpy(torch.stack(means).mean(0).numpy().copy())
    return module

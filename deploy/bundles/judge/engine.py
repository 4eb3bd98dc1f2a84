"""A candidate opened in this process by the very program that runs it inside Triton, so that what is judged is served.

Used by the accuracy gate (whole requests: padding, grouping, cutting) and by the speed table (the bare call).
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from deploy.bundles.judge.signal_stack import former_signal_stack
from deploy.sync.model_folder.execution import Execution
from deploy.sync.runtime.onnx_model import ENGINES, Runner, first_line
from deploy.tools.errors import ExportFailed

_ROWS: Final = 8
"""Texts that share a batch in the accuracy check; they are of all lengths, so most of them are padded."""

_MAX_SHARED: Final = 512
"""Tokens of the longest text that shares a batch there: eight of a model's longest would not fit into memory."""


class Engine:
    """One ONNX file in one engine with a number of threads. Raises ``ExportFailed`` when it does not load."""

    def __init__(self, path: Path, execution: Execution, *, threads: int, pads: Mapping[str, int]) -> None:
        parameters = {
            "threads": str(threads),
            "precision": execution.precision,
            "pad_values": json.dumps(pads),
            "pad_to": str(execution.pad_to),
            "max_padding": "1000",
        }
        name, load, package = ENGINES[execution.engine]
        try:
            with former_signal_stack():
                self.session = load(path, parameters)
        except ModuleNotFoundError as error:
            raise ExportFailed(f"{name} is not installed", hint=f"run `pip install {package}`") from error
        except Exception as error:
            raise ExportFailed(f"{name} cannot load the graph: {first_line(error)}") from error
        config = {
            "max_batch_size": 64,
            "parameters": {key: {"string_value": value} for key, value in parameters.items()},
        }
        self._runner = Runner(self.session, config)
        self.output_names = [output.name for output in self.session.get_outputs()]

    def call(self, feeds: Mapping[str, Any]) -> list[Any]:
        """Run one batch as it is; all outputs."""
        found: list[Any] = self.session.run(self.output_names, feeds)
        return found

    def answer(self, requests: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
        """Answer every request as the server would. They share batches of different lengths, save the longest.

        Raises ``ExportFailed`` if the graph cannot answer one.
        """
        answers: list[dict[str, Any]] = [{}] * len(requests)
        sharing = [i for i, feeds in enumerate(requests) if feeds["input_ids"].shape[1] <= _MAX_SHARED]
        # Every k-th text shares a batch: neighbours in the list are of similar length, these are not.
        step = max(1, -(-len(sharing) // _ROWS))
        groups = [sharing[start::step] for start in range(step)] if sharing else []
        for group in (*groups, *([i] for i in range(len(requests)) if i not in set(sharing))):
            for i, answer in zip(group, self.answer_together([requests[i] for i in group]), strict=True):
                if isinstance(answer, str):
                    raise ExportFailed(f"the graph cannot answer a text: {answer}")
                answers[i] = answer
        return answers

    def answer_together(self, requests: Sequence[Mapping[str, Any]]) -> list[dict[str, Any] | str]:
        """Answer requests that share one batch, padded to the longest, as the server would."""
        answers: list[dict[str, Any] | str] = [""] * len(requests)

        def take(index: int, outputs: dict[str, Any]) -> None:
            answers[index] = outputs

        def refuse(index: int, message: str) -> None:
            answers[index] = message

        self._runner.run([self._runner.read(i, request, ()) for i, request in enumerate(requests)], take, refuse)
        return answers

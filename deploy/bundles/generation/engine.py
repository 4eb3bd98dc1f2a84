"""Opens a candidate's graph in this process with the program that runs it inside Triton."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from deploy.sync.runtime import generate_model
from deploy.sync.runtime.generate_model import Continued, Settings
from deploy.tools.errors import ExportFailed


class Generator:
    """One graph with a number of threads. Raises ``ExportFailed`` if it does not load or has the wrong form."""

    def __init__(self, path: Path, *, threads: int) -> None:
        import onnxruntime

        onnxruntime.disable_telemetry_events()
        try:
            self._graph = generate_model.open_graph(path, threads, onnxruntime)
        except generate_model.Refused as error:
            raise ExportFailed(str(error)) from error
        except Exception as error:
            raise ExportFailed(f"ONNX Runtime cannot load the graph: {generate_model.first_line(error)}") from error

    def follow(self, prompt: Sequence[int], tokens: Sequence[int]) -> NDArray[Any]:
        """Return the logits from which each of ``tokens`` would be chosen after ``prompt`` ([tokens, vocabulary]).

        The prompt is read at once, then the tokens one by one with the cache. Raises ``ExportFailed`` with the length
        that failed.
        """
        sequence = _sequence(prompt)
        found = []
        for token in tokens:
            found.append(self._next(sequence))
            sequence.ids.append(token)
        return np.stack(found)

    def whole(self, ids: Sequence[int]) -> NDArray[Any]:
        """Return the logits after ``ids``, read at once without a cache ([vocabulary]). Raises ``ExportFailed``."""
        return np.asarray(self._next(_sequence(ids)))

    def continue_(self, prompt: Sequence[int], tokens: int) -> tuple[int, ...]:
        """Return ``tokens`` tokens, always the best one. Raises ``ExportFailed``."""
        sequence = _sequence(prompt)
        for _ in range(tokens):
            sequence.ids.append(int(self._next(sequence).argmax()))
        return tuple(sequence.ids[-tokens:])

    def _next(self, sequence: Continued) -> NDArray[Any]:
        new = len(sequence.ids) - sequence.n_read
        try:
            return np.array(self._graph.next_logits(sequence))
        except Exception as error:
            after = f" after {sequence.n_read}" if sequence.n_read else ""
            raise ExportFailed(
                f"the graph cannot read {new} token(s){after}: {generate_model.first_line(error)}"
            ) from error


def _sequence(ids: Sequence[int]) -> Continued:
    return Continued(None, list(ids), Settings(), None)

"""A candidate opened in this process by the very program that runs it inside Triton, so that what is judged is served.

Used by the accuracy gate (whole requests) and by the speed table (the bare call).
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from deploy.sync.model_folder.execution import Execution
from deploy.sync.runtime.onnx_model import Refused, Runner, open_session
from deploy.tools.errors import ExportFailed, first_line


class Engine:
    """One ONNX file in one engine with a number of threads. Raises ``ExportFailed`` when it does not load."""

    def __init__(self, path: Path, execution: Execution, *, threads: int) -> None:
        parameters = {"threads": str(threads), "precision": execution.precision}
        try:
            self.session = open_session(execution.engine, path, parameters)
        except Refused as error:
            raise ExportFailed(str(error)) from error
        self._runner = Runner(self.session, {"max_batch_size": 64})
        self.output_names = [output.name for output in self.session.get_outputs()]

    def call(self, feeds: Mapping[str, Any]) -> list[Any]:
        """Run one batch as it is; all outputs."""
        found: list[Any] = self.session.run(self.output_names, feeds)
        return found

    def answer(self, feeds: Mapping[str, Any]) -> dict[str, Any]:
        """Answer one request as the server would. Raises ``ExportFailed`` if the graph cannot."""
        try:
            return self._runner.answer(feeds)
        except Exception as error:
            raise ExportFailed(f"the graph cannot answer: {first_line(error)}") from error

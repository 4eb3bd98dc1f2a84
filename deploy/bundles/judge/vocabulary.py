"""Looks for tokens at which a ready graph answers no numbers. There is no original to compare such a model with.

A weight that is not a number, or one that overflows in half precision, may show at a single token of the vocabulary.
The gateway's warm-up does not try them all, because every worker would do it at every start, for minutes if the model
is large. So ``deploy`` tries them once.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final

import numpy as np

from deploy.bundles.judge import probes
from deploy.tools.errors import ExportFailed, first_line
from preprocessing.processor import TextProcessor
from preprocessing.types import Encoded

Say = Callable[[str], None]

_BUDGET_S: Final = 60.0
"""Time after which the rest of a large vocabulary is left out."""
_TOKENS: Final = 128


def refuse_broken_tokens(
    graph: Path, folder: Path, options: Mapping[str, object] | None, say: Say, progress: Say,
    *, clock: Callable[[], float] = time.monotonic,
) -> None:  # fmt: skip
    """Run ``graph`` on every token of the vocabulary of ``folder``.

    Raises ``ExportFailed`` for a token at which an answer is not finite, and ``PreprocessingError`` for a folder that
    cannot be served.
    """
    import onnxruntime as ort

    try:
        session = ort.InferenceSession(str(graph), providers=["CPUExecutionProvider"])
    except Exception as error:  # noqa: BLE001 - the library has no common class; the one in Triton may load it
        say(f"the graph was not tried with every token, ONNX Runtime cannot load it: {first_line(error)[:200]}")
        return
    processor = TextProcessor.from_folder(
        folder, options=options, input_names=[one.name for one in session.get_inputs()],
        output_names=[one.name for one in session.get_outputs()],
        input_dtypes={one.name: "int32" for one in session.get_inputs() if one.type == "tensor(int32)"},
    )  # fmt: skip
    rows = probes.RowBuilder(processor)

    def is_sound(row: Encoded) -> bool:
        try:
            outputs = session.run(list(processor.output_names or ()) or None, processor.collate_rows([row]))
        except Exception as error:
            raise ExportFailed(
                f"the graph cannot run a row of {row.n_tokens} tokens: {first_line(error)[:200]}",
                hint="the tokenizer may belong to another model",
            ) from error
        return all(np.isfinite(value).all() for value in outputs if np.issubdtype(np.asarray(value).dtype, np.floating))

    longest = min(processor.config.max_length, _TOKENS)
    if not is_sound(rows.row(longest, start=0)):
        raise ExportFailed("the graph's answer to an ordinary text is not a number", hint="export the model again")
    own = rows.vocabulary(processor.config.pad_id)
    room, began = rows.room(longest), clock()
    for start in range(0, len(own), room):
        progress(f"trying every token: {start} of {len(own)}")
        part = own[start : start + room]
        if not is_sound(rows.framed(part)):
            token = _guilty(part, lambda ids: is_sound(rows.framed(ids)))
            named = processor.tokenizer.token_of(token)
            raise ExportFailed(
                f"the graph's answer to a text with the token {named!r} ({token}) is not a number",
                hint="a weight is not finite, or overflows: export the model again, in fp32",
            )
        if clock() - began > _BUDGET_S and start + room < len(own):
            say(f"the first {start + len(part)} of {len(own)} tokens were tried, the others would take too long")
            return


def _guilty(ids: Sequence[int], is_sound: Callable[[Sequence[int]], bool]) -> int:
    """Return one of ``ids`` that makes an answer unsound, or the first if only several together do."""
    while len(ids) > 1:
        half = ids[: len(ids) // 2]
        if is_sound(half):
            half = ids[len(ids) // 2 :]
            if is_sound(half):
                break
        ids = half
    return ids[0]

"""The base of all tasks (`Head`), and what they share: parsing of `text`, `text_pair` and `parameters`, and checks.

A head has no state after construction and knows no backend or HTTP. A new task is one file beside this one
and one line in `heads/__init__.py`.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any, ClassVar, Final, TypeAlias, cast

import numpy as np
from numpy.typing import NDArray

from preprocessing.config import Side, TaskConfig
from preprocessing.errors import InvalidBundle, InvalidInput, InvalidOutput
from preprocessing.parameters import Parameters, shown
from preprocessing.types import Encoded, FloatArray, ParsedRequest, Prepared, Tensors, Texts, Window

Results: TypeAlias = Sequence[Mapping[str, Any]] | FloatArray
"""One result per text, in order: objects, or the rows of an array."""

NUMBER_BYTES: Final = 12
"""Size of a float32 number in JSON, with its comma."""
_FIELDS: Final = ("text", "text_pair")
_REQUIRED: Final = ("text",)
_OTHER_NAMES: Final = ("inputs", "input", "texts", "sentence", "sentences", "query", "content", "prompt")
_EXAMPLE: Final = 'send {"text": "…"} or {"text": ["…", "…"]}'


class Head:
    """One task: the form of its request, and the meaning of its outputs.

    As it is, for requests that have one row per text, and results that are objects. A request may have more rows than
    texts, in two ways. A head may list more texts than the request has (a pair per candidate label or document);
    `decode` then groups rows by position. Or it may ask for windows (`ParsedRequest.windows`); rows are then
    `types.Window` and say which text they belong to.
    """

    task: str
    text_fields: Sequence[str] = ("text",)
    """The fields of the body that hold texts."""
    parameters: ClassVar[type[Parameters]] = Parameters
    example: Mapping[str, object] = {"text": "A man is eating food."}
    """A request, for the endpoint's docs page."""
    labels: Sequence[str] = ()
    """The labels of its answers, if the model has any."""
    needs_windows = False
    """Whether `parse` asks for windows."""
    row_bytes = 0
    """About the size of a row's result as JSON; 0 for an answer that is limited otherwise."""
    outputs: Sequence[str] = ("logits",)
    """Names of the output that answers the task, the best first."""

    def __init__(self, config: TaskConfig) -> None:
        self._config = config

    def parse(self, body: object) -> ParsedRequest:
        """Check a decoded request body. Raises InvalidInput with what to send."""
        raise NotImplementedError

    def answer_bytes(self, prepared: Prepared, output_bytes: int) -> int:
        """Estimate the size of the answer as JSON before the model is called; never much too low.

        `output_bytes` is the size of the model's outputs for these rows. As it is, all results are of one size.
        """
        del output_bytes
        return len(prepared.rows) * self.row_bytes

    def decode(self, outputs: Tensors, prepared: Prepared) -> Results:
        """Return one result per text of the request. Raises InvalidOutput."""
        raise NotImplementedError

    def describe(self) -> dict[str, object]:
        """Return labels, parameters and an example request for the endpoint's docs page."""
        return {
            **({"labels": list(self.labels)} if self.labels else {}),
            "parameters": list(self.parameters.model_fields),
            "example": self.example,
        }

    def field_of(self, request: ParsedRequest, row: int) -> str:
        """Return the name in the request of the text of an encoded row, for messages."""
        return text_field(request, row)

    def select_outputs(self, available: Sequence[str]) -> tuple[str, ...]:
        """Return the first of `outputs` that exists, or else the only output. Raises InvalidBundle."""
        if (name := self._output_of(available)) is not None:
            return (name,)
        raise InvalidBundle(
            f"The model's outputs ({', '.join(available) or 'none'}) do not show which one answers {self.task}",
            hint=f"name it one of {', '.join(self.outputs)}",
        )

    def take_tokens(
        self, outputs: Tensors, rows: Sequence[Encoded], values: str, size: int | None = None
    ) -> tuple[str, NDArray[Any]]:
        """Return the output to decode, [rows, tokens, values]. Raises InvalidOutput.

        `values` says in a message what they are, `size` is their number, if known.
        """
        name, tensor = self.take(outputs)
        fits = tensor.ndim == 3 and len(tensor) == len(rows) and size in (None, tensor.shape[2])
        if not fits or tensor.shape[1] < max(row.n_tokens for row in rows):
            raise InvalidOutput(
                f"Output {name} has shape {list(tensor.shape)} for {len(rows)} rows",
                hint=f"expected rows × tokens × {values}",
            )
        return name, tensor

    def take(self, outputs: Tensors) -> tuple[str, NDArray[Any]]:
        """Return the output to decode, by the same rule. Raises InvalidOutput."""
        if (name := self._output_of(outputs)) is not None:
            return name, outputs[name]
        raise InvalidOutput(
            f"The backend answered with {', '.join(outputs) or 'no outputs'}",
            hint=f"expected {' or '.join(self.outputs)}",
        )

    def _output_of(self, names: Collection[str]) -> str | None:
        for name in self.outputs:
            if name in names:
                return name
        return next(iter(names)) if len(names) == 1 else None

    def counted(self, prepared: Prepared) -> dict[str, object]:
        """Return what the answer says of tokens and cuts."""
        return counts(prepared)

    def render(self, results: Results, prepared: Prepared) -> dict[str, object]:
        """Return the answer's body: a single text's result at the top level, those of a list under `results`.

        It may contain C-contiguous numpy arrays (orjson: OPT_SERIALIZE_NUMPY).
        """
        objects = cast("Sequence[Mapping[str, Any]]", results)
        if not prepared.request.is_batch:
            return {**objects[0], **self.counted(prepared)}
        return {"results": list(objects), **self.counted(prepared)}


class WindowedHead(Head):
    """A head that reads a long text in several rows."""

    needs_windows = True

    def counted(self, prepared: Prepared) -> dict[str, object]:
        """Return what the answer says of tokens, cuts and windows."""
        return group_counts(prepared, [[prepared.rows[i] for i in own] for own in windows_by_text(prepared)])


# --- requests ---------------------------------------------------------------------------------------------------------


def read_body(
    body: object, fields: Sequence[str], required: Sequence[str], example: str
) -> tuple[dict[str, Any], Mapping[str, object]]:
    """Return a body's fields, and its `parameters`, which are not checked yet (empty if there are none)."""
    if not isinstance(body, dict):
        raise InvalidInput(f"The request body must be an object, not {_kind(body)}", hint=example)
    for name in body:
        if name not in fields and name != "parameters":
            is_text = "text" in fields and "text" not in body and name in _OTHER_NAMES
            hint = "rename it to text" if is_text else f"known are {', '.join((*fields, 'parameters'))}"
            raise InvalidInput(f"Unknown field {shown(name)}", field=shown(name), hint=hint)
    for name in required:
        if body.get(name) is None:
            raise InvalidInput(f"The field {name} is missing", field=name, hint=example)
    parameters = body.get("parameters")
    if parameters is not None and not isinstance(parameters, dict):
        raise InvalidInput(f"parameters must be an object, not {_kind(parameters)}", field="parameters")
    return body, parameters or {}


def text_field(request: ParsedRequest, row: int) -> str:
    """Return the name of a text in a request: `text`, or its item in a list."""
    return f"text[{row}]" if request.is_batch else "text"


def refuse_many(rows: int, config: TaskConfig, field: str) -> None:
    """Raise InvalidInput if a request makes more rows than the endpoint accepts."""
    if rows > config.max_rows:
        raise InvalidInput(
            f"The request makes {rows} rows, at most {config.max_rows} are taken at once",
            field=field,
            hint="send several requests",
        )


def parse_texts(body: object, config: TaskConfig, *, pairs: bool) -> tuple[Texts, bool, Mapping[str, object]]:
    """Return the texts of a body, whether it was a list, and its `parameters`, which are not checked yet.

    Forms: `{"text": "a"}` and `{"text": ["a", "b"]}`; with pairs also `{"text": "a", "text_pair": "b"}`, and both as
    lists of one length. `text_pair` and `parameters` may be null.
    """
    found, parameters = read_body(body, _FIELDS, _REQUIRED, _EXAMPLE)
    text, pair = found["text"], found.get("text_pair")
    if pair is not None and not pairs:
        raise InvalidInput("This task takes single texts", field="text_pair", hint="leave text_pair out")
    if isinstance(text, list):
        return _list(text, pair, config), True, parameters
    checked = read_text(text, "text", config)
    return [checked] if pair is None else [(checked, read_text(pair, "text_pair", config))], False, parameters


def _list(items: list[object], pair: object, config: TaskConfig) -> Texts:
    if not items:
        raise InvalidInput("text is an empty list", field="text", hint="send at least one text")
    refuse_many(len(items), config, "text")
    if pair is not None:
        if not isinstance(pair, list) or len(pair) != len(items):
            raise InvalidInput("text is a list, so text_pair must be a list of the same length", field="text_pair")
        return [
            (read_text(a, f"text[{i}]", config), read_text(b, f"text_pair[{i}]", config))
            for i, (a, b) in enumerate(zip(items, pair, strict=True))
        ]
    return [read_text(item, f"text[{i}]", config) for i, item in enumerate(items)]


def read_text(value: object, field: str, config: TaskConfig) -> str:
    """Return a text that the endpoint accepts: not too long, valid Unicode, and not empty unless that is allowed."""
    if not isinstance(value, str):
        hint = _EXAMPLE
        if isinstance(value, list):
            hint = 'send pairs as {"text": ["a", …], "text_pair": ["b", …]}'
        raise InvalidInput(f"{field} must be a string, not {_kind(value)}", field=field, hint=hint)
    if (not value or value.isspace()) and not config.allow_empty:
        raise InvalidInput(f"{field} is empty", field=field, hint="send some text, or leave the item out")
    if len(value) > config.max_chars:
        raise InvalidInput(
            f"{field} has {len(value)} characters, at most {config.max_chars} are taken",
            field=field,
            hint=f"the model reads {config.max_length} tokens of it; cut or split it",
        )
    if not value.isascii():  # ASCII strings cannot contain half a surrogate pair
        try:
            value.encode("utf-8")
        except UnicodeEncodeError as error:
            raise InvalidInput(
                f"{field} is not valid Unicode: half a surrogate pair at character {error.start}", field=field
            ) from error
    return value


def prompt_of(config: TaskConfig, name: object, field: str) -> str:
    """Return the model's prompt of this name; None is its default prompt, which may be empty."""
    if name is None:
        name = config.default_prompt
    if name is None:
        return ""
    if not isinstance(name, str) or name not in config.prompts:
        known = f"it has {', '.join(sorted(config.prompts))}" if config.prompts else "it has none"
        raise InvalidInput("This model has no prompt of that name", field=field, hint=known)
    return config.prompts[name]


def _kind(value: object) -> str:
    """Return a value's type in JSON's terms."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "a boolean"
    kinds: tuple[tuple[Any, str], ...] = (
        (str, "a string"),
        (int | float, "a number"),
        (list | tuple, "a list"),
        (dict, "an object"),
        (bytes | bytearray | memoryview, "raw bytes"),
    )
    return next((word for kind, word in kinds if isinstance(value, kind)), f"a {type(value).__name__}")


# --- outputs ----------------------------------------------------------------------------------------------------------


def refuse_non_finite(name: str, values: NDArray[Any]) -> None:
    """Raise InvalidOutput if values for an answer are NaN or infinite."""
    if not np.isfinite(values).all():
        raise InvalidOutput(
            f"Output {name} holds numbers that are not finite",
            hint="the model overflowed, as half precision can, or its file is damaged",
        )


# --- answers ----------------------------------------------------------------------------------------------------------


def counts(prepared: Prepared) -> dict[str, object]:
    """Return `tokens` of every text, and `truncated` if any text was cut; single values for a single text."""
    rows = prepared.rows
    if not prepared.request.is_batch:
        row = rows[0]
        return {"tokens": row.n_tokens, "truncated": True} if row.truncated else {"tokens": row.n_tokens}
    answer: dict[str, object] = {"tokens": [row.n_tokens for row in rows]}
    truncated = [row.truncated for row in rows]
    if any(truncated):
        answer["truncated"] = truncated
    return answer


def group_counts(prepared: Prepared, groups: Sequence[Sequence[Encoded]]) -> dict[str, object]:
    """Return `counts` for tasks that read each text in a group of rows.

    `tokens` of a text covers all its rows; `windows`, if any text has several, is the number of its rows.
    """
    tokens = [sum(row.n_tokens for row in group) for group in groups]
    cut = [any(row.truncated for row in group) for group in groups]
    several = [len(group) for group in groups]
    windowed = prepared.request.windows is not None and max(several) > 1
    if not prepared.is_batch:
        return {
            "tokens": tokens[0],
            **({"truncated": True} if cut[0] else {}),
            **({"windows": several[0]} if windowed else {}),
        }
    return {
        "tokens": tokens,
        **({"truncated": cut} if any(cut) else {}),
        **({"windows": several} if windowed else {}),
    }


def windows_by_text(prepared: Prepared) -> list[list[int]]:
    """Return the positions of each text's rows."""
    groups: list[list[int]] = [[] for _ in prepared.request.texts]
    for position, row in enumerate(prepared.rows):
        groups[cast("Window", row).source].append(position)
    return groups


def own_tokens(tensor: NDArray[Any], row: int, length: int, side: Side) -> NDArray[Any]:
    """Return the part of a tensor [rows, tokens, …] for one row's own tokens, without padding."""
    whole: NDArray[Any] = tensor[row]
    return whole[:length] if side == "right" else whole[len(whole) - length :]

"""What a task is (`Head`), and what all text heads share: reading `text`, `text_pair` and `parameters` out of a body,
and checking a backend's tensors.

A head is stateless after construction and knows no tokenizer, no backend and no HTTP. A new task is one file beside
this one and one line in `heads/__init__.py`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple, Protocol, TypeAlias, TypeVar, cast

import numpy as np
from numpy.typing import NDArray

from preprocessing.config import Side, TaskConfig
from preprocessing.errors import InvalidBundle, InvalidInput, InvalidOutput
from preprocessing.types import Encoded, FloatArray, ParsedRequest, Prepared, Tensors, Texts, Window

Results: TypeAlias = Sequence[Mapping[str, Any]] | FloatArray
"""One result per text, in order: objects, or the rows of an array."""

NUMBER_BYTES: Final = 12
"""Of a float32 number as JSON, with its comma."""
_T = TypeVar("_T", bound=str)
_FIELDS: Final = ("text", "text_pair", "parameters")
_OTHER_NAMES: Final = ("inputs", "input", "texts", "sentence", "sentences", "query", "content", "prompt")
_EXAMPLE: Final = 'send {"text": "…"} or {"text": ["…", "…"]}'


class Cost(NamedTuple):
    """What the answer to a request takes, estimated before the model is asked; never much too low."""

    answer_bytes: int
    """Of the answer as JSON."""
    work: int
    """Microseconds to make it of the model's outputs."""


class Vocabulary(Protocol):
    """What a head may ask of the tokenizer: ids and tokens, never texts of a request."""

    @property
    def is_word_aware(self) -> bool:
        """Whether a token's own text tells if it continues a word (WordPiece's prefix)."""

    def token_of(self, token_id: int) -> str:
        """A token as the vocabulary writes it."""

    def id_of(self, token: str) -> int | None:
        """The id of exactly this token."""

    def first_ids(self, texts: Sequence[str]) -> list[int | None]:
        """The first token that each text begins with, None if it has none."""

    def prompt_size(self, prompt: str) -> int:
        """How many tokens a text that begins with this prompt begins with for it."""

    def join(self, tokens: Sequence[str]) -> str:
        """Tokens as readable text."""

    def decode_batch(self, rows: Sequence[Sequence[int]], *, skip_special_tokens: bool = False) -> list[str]:
        """Each row of ids as readable text."""


class Head(Protocol):
    """One task: how its request reads, and what its outputs mean.

    One request may become more rows than it has texts in two ways. A head may list more texts than the request has
    (a pair per candidate label, per document): `decode` then groups by position. Or it may ask for windows
    (`ParsedRequest.windows`): rows are then `types.Window`, and say which text they are from.
    """

    @property
    def task(self) -> str:
        """The task's name."""

    @property
    def text_fields(self) -> Sequence[str]:
        """The body's fields that hold texts."""

    @property
    def needs_windows(self) -> bool:
        """Whether `parse` asks for windows."""

    @property
    def row_cost(self) -> Cost | None:
        """What the answer to one row takes, if that is the same for every row and never depends on a request."""

    def parse(self, body: object) -> ParsedRequest:
        """Check a decoded request body; raises InvalidInput, which says what to send."""

    def field_of(self, request: ParsedRequest, row: int) -> str:
        """What the request calls the text of this row (as encoded), for messages."""

    def select_outputs(self, available: Sequence[str]) -> tuple[str, ...]:
        """Which of the backend's outputs to ask for; raises InvalidBundle if none is usable."""

    def cost(self, prepared: Prepared, output_bytes: int) -> Cost:
        """What the answer will take; `output_bytes` are those of the model's outputs for these rows."""

    def decode(self, outputs: Tensors, prepared: Prepared) -> Results:
        """One result per text of the request; raises InvalidOutput."""

    def render(self, results: Results, prepared: Prepared) -> dict[str, object]:
        """The answer's body; may hold numpy arrays (C-contiguous), which orjson writes with OPT_SERIALIZE_NUMPY."""

    def describe(self) -> dict[str, object]:
        """What the docs page of an endpoint shows: labels, parameters, example request."""


# --- requests ---------------------------------------------------------------------------------------------------------


def read_body(
    body: object, fields: Sequence[str], required: Sequence[str], example: str
) -> tuple[dict[str, Any], Mapping[str, object]]:
    """A body's fields and its still unchecked `parameters` (an empty mapping if there are none)."""
    if not isinstance(body, dict):
        raise InvalidInput(f"The request body must be an object, not {_kind(body)}", hint=example)
    for name in body:
        if name not in fields and name != "parameters":
            raise InvalidInput(
                f"Unknown field {_shown(name)}",
                field=_shown(name),
                hint=f"known are {', '.join((*fields, 'parameters'))}",
            )
    for name in required:
        if body.get(name) is None:
            raise InvalidInput(f"The field {name} is missing", field=name, hint=example)
    parameters = body.get("parameters")
    if parameters is None:
        parameters = {}
    elif not isinstance(parameters, dict):
        raise InvalidInput(f"parameters must be an object, not {_kind(parameters)}", field="parameters")
    return body, parameters


def read_text(value: object, field: str, config: TaskConfig) -> str:
    """A string that the endpoint takes: not too long, valid Unicode, not empty unless the endpoint reads empty ones."""
    return _text(value, field, config)


def text_field(request: ParsedRequest, row: int) -> str:
    """`field_of` for tasks with one row per text."""
    return f"text[{row}]" if request.is_batch else "text"


def refuse_many(rows: int, config: TaskConfig, field: str) -> None:
    """Raise if a request makes more rows than the endpoint takes at once."""
    if rows > config.max_rows:
        raise InvalidInput(
            f"The request makes {rows} rows, at most {config.max_rows} are taken at once",
            field=field,
            hint="send several requests",
        )


def parse_texts(body: object, config: TaskConfig, *, pairs: bool) -> tuple[Texts, bool, Mapping[str, object]]:
    """The texts of a body, whether it was a list, and its still unchecked `parameters`.

    Forms: `{"text": "a"}` and `{"text": ["a", "b"]}`; with pairs also `{"text": "a", "text_pair": "b"}`, both as lists
    of one length, and `{"text": [{"text": "a", "text_pair": "b"}, …]}`. `text_pair` and `parameters` may be null.
    """
    if not isinstance(body, dict):
        raise InvalidInput(f"The request body must be an object, not {_kind(body)}", hint=_EXAMPLE)
    for name in body:
        if name not in _FIELDS:
            raise _unknown_field(name, missing="text" not in body)
    if "text" not in body:
        raise InvalidInput("The field text is missing", field="text", hint=_EXAMPLE)
    parameters = body.get("parameters")
    if parameters is None:
        parameters = {}
    elif not isinstance(parameters, dict):
        raise InvalidInput(f"parameters must be an object, not {_kind(parameters)}", field="parameters")
    text, pair = body["text"], body.get("text_pair")
    if pair is not None and not pairs:
        raise InvalidInput("This task takes single texts", field="text_pair", hint="leave text_pair out")
    if isinstance(text, list):
        return _list(text, pair, config, pairs=pairs), True, parameters
    checked = _text(text, "text", config)
    return [checked] if pair is None else [(checked, _text(pair, "text_pair", config))], False, parameters


def refuse_unknown_parameters(parameters: Mapping[str, object], known: Sequence[str]) -> None:
    """Raise for the first parameter that is not among the known ones."""
    for name in parameters:
        if name not in known:
            takes = f"this endpoint takes {', '.join(known)}" if known else "this endpoint takes none"
            raise InvalidInput(f"Unknown parameter {_shown(name)}", field="parameters", hint=takes)


def count_of(parameters: Mapping[str, object], name: str, *, least: int = 1, most: int | None = None) -> int | None:
    """A whole number, None if the parameter is missing or null."""
    value = parameters.get(name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int) or value < least or (most is not None and value > most):
        upper = "" if most is None else f" and at most {most}"
        raise InvalidInput(f"{name} must be a whole number of at least {least}{upper}", field=f"parameters.{name}")
    return value


def number_of(parameters: Mapping[str, object], name: str, *, above: float, most: float = math.inf) -> float | None:
    """A finite number greater than `above`, None if the parameter is missing or null."""
    value = parameters.get(name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not above < value <= most or value == math.inf:
        upper = "" if most == math.inf else f" and at most {most:g}"
        raise InvalidInput(f"{name} must be a number above {above:g}{upper}", field=f"parameters.{name}")
    return float(value)


def flag_of(parameters: Mapping[str, object], name: str) -> bool | None:
    """True or false, None if the parameter is missing or null."""
    value = parameters.get(name)
    if value is not None and not isinstance(value, bool):
        raise InvalidInput(f"{name} must be true or false", field=f"parameters.{name}")
    return value


def strings_of(
    parameters: Mapping[str, object],
    name: str,
    *,
    splits: bool = False,
    most: int = 1000,
    max_chars: int | None = None,
) -> tuple[str, ...] | None:
    """A list of at most `most` strings of at most `max_chars` characters, None if the parameter is missing or null;
    one string is a list of one, or, if `splits`, a list with commas.
    """
    value = parameters.get(name)
    if value is None:
        return None
    if isinstance(value, str):
        value = [part.strip() for part in value.split(",") if part.strip()] if splits else [value]
    if not isinstance(value, list) or not value or not all(isinstance(item, str) and item for item in value):
        raise InvalidInput(f"{name} must be a list of strings that are not empty", field=f"parameters.{name}")
    if len(value) > most:
        raise InvalidInput(f"{name} has {len(value)} items, at most {most} are taken", field=f"parameters.{name}")
    for item in value:
        if max_chars is not None and len(item) > max_chars:
            raise InvalidInput(
                f"{name} has an item of {len(item)} characters, at most {max_chars} are taken",
                field=f"parameters.{name}",
            )
        refuse_half_pairs(item, f"parameters.{name}")
    return tuple(value)


def choice_of(parameters: Mapping[str, object], name: str, choices: Sequence[_T]) -> _T | None:
    """One of the choices, None if the parameter is missing or null."""
    value = parameters.get(name)
    if value is None:
        return None
    for choice in choices:
        if choice == value:
            return choice
    raise InvalidInput(f"{name} must be one of {', '.join(choices)}", field=f"parameters.{name}")


def refuse_half_pairs(value: str, field: str) -> None:
    """Raise if a string holds half a surrogate pair, which no tokenizer takes."""
    try:
        value.encode("utf-8")
    except UnicodeEncodeError as error:
        raise InvalidInput(
            f"{field} is not valid Unicode: half a surrogate pair at character {error.start}", field=field
        ) from error


def _list(items: list[object], pair: object, config: TaskConfig, *, pairs: bool) -> Texts:
    if not items:
        raise InvalidInput("text is an empty list", field="text", hint="send at least one text")
    if len(items) > config.max_rows:
        raise InvalidInput(
            f"text has {len(items)} items, at most {config.max_rows} are taken at once",
            field="text",
            hint="send several requests",
        )
    if pair is not None:
        if not isinstance(pair, list) or len(pair) != len(items):
            raise InvalidInput("text is a list, so text_pair must be a list of the same length", field="text_pair")
        return [
            (_text(a, f"text[{i}]", config), _text(b, f"text_pair[{i}]", config))
            for i, (a, b) in enumerate(zip(items, pair, strict=True))
        ]
    if isinstance(items[0], dict) and pairs:
        return _objects(items, config)
    return [_text(item, f"text[{i}]", config) for i, item in enumerate(items)]


def _objects(items: list[object], config: TaskConfig) -> Texts:
    """Items as transformers' pipelines take them; all of them pairs, or none."""
    texts: list[str] = []
    pairs: list[tuple[str, str]] = []
    for i, item in enumerate(items):
        if not isinstance(item, dict) or "text" not in item or not set(item) <= {"text", "text_pair"}:
            raise InvalidInput(
                f"text[{i}] must be an object with text and text_pair, as the first item is",
                field=f"text[{i}]",
                hint='send {"text": [{"text": "…", "text_pair": "…"}, …]}',
            )
        text = _text(item["text"], f"text[{i}].text", config)
        pair = item.get("text_pair")
        if pair is None:
            texts.append(text)
        else:
            pairs.append((text, _text(pair, f"text[{i}].text_pair", config)))
    if texts and pairs:
        raise InvalidInput(
            "Some items have a text_pair and some have none", field="text", hint="send them in two requests"
        )
    return pairs or texts


def _text(value: object, field: str, config: TaskConfig) -> str:
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
    if not value.isascii():  # only then can it hold half a surrogate pair
        refuse_half_pairs(value, field)
    return value


def _unknown_field(name: object, *, missing: bool) -> InvalidInput:
    known = f"known are {', '.join(_FIELDS)}"
    hint = "rename it to text" if missing and name in _OTHER_NAMES else known
    return InvalidInput(f"Unknown field {_shown(name)}", field=_shown(name), hint=hint)


def _shown(name: object) -> str:
    """A client's own name for something, short and printable."""
    return ascii(name)[1:-1][:40] if isinstance(name, str) else ascii(name)[:40]


def _kind(value: object) -> str:
    """A value's type in JSON's words."""
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


def prefer(available: Sequence[str], preferred: Sequence[str], task: str) -> tuple[str, ...]:
    """The first preferred output that exists, else the only one there is."""
    for name in preferred:
        if name in available:
            return (name,)
    if len(available) == 1:
        return (available[0],)
    raise InvalidBundle(
        f"The model's outputs ({', '.join(available) or 'none'}) do not tell which one answers {task}",
        hint=f"name it one of {', '.join(preferred)}",
    )


def take(outputs: Tensors, preferred: Sequence[str]) -> tuple[str, NDArray[Any]]:
    """The output to decode, by the same rule as `prefer`."""
    for name in preferred:
        if name in outputs:
            return name, outputs[name]
    if len(outputs) == 1:
        return next(iter(outputs.items()))
    raise InvalidOutput(
        f"The backend answered with {', '.join(outputs) or 'no outputs'}", hint=f"expected {' or '.join(preferred)}"
    )


def refuse_non_finite(name: str, values: NDArray[Any]) -> None:
    """Raise if numbers that go into an answer are NaN or infinite."""
    if not np.isfinite(values).all():
        raise InvalidOutput(
            f"Output {name} holds numbers that are not finite",
            hint="the model overflowed, as half precision can, or its file is damaged",
        )


# --- answers ----------------------------------------------------------------------------------------------------------


def counts(prepared: Prepared) -> dict[str, object]:
    """`tokens` of every text, and `truncated` if any text was cut; single values for a single text."""
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
    """What `counts` says, for tasks that read each text in a group of rows: `tokens` of a text are those of all its
    rows, `windows` (if any text has more than one) is the number of its rows.
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
    """The positions of each text's rows."""
    groups: list[list[int]] = [[] for _ in prepared.request.texts]
    for position, row in enumerate(prepared.rows):
        groups[cast("Window", row).source].append(position)
    return groups


def own_tokens(tensor: NDArray[Any], row: int, length: int, side: Side) -> NDArray[Any]:
    """What a tensor [rows, tokens, …] says of one row's own tokens."""
    whole: NDArray[Any] = tensor[row]
    return whole[:length] if side == "right" else whole[len(whole) - length :]

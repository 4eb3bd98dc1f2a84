"""What may be asked of a task: the parameters of requests, and the options of endpoints, as pydantic's models.

The values of a request are JSON, and are not converted. Those of an option may be text, as on a command line.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Final, Literal, Self, TypeAlias, get_args

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from preprocessing.errors import InvalidInput, InvalidOption

Activation: TypeAlias = Literal["softmax", "sigmoid", "none"]
LongTexts: TypeAlias = Literal["cut", "window", "refuse"]
Aggregation: TypeAlias = Literal["none", "simple", "first", "average", "max"]
Pooling: TypeAlias = Literal["cls", "max", "mean", "mean_sqrt_len", "weightedmean", "lasttoken"]
"""The pooling modes of sentence-transformers, in the order in which it concatenates their results."""

POOLINGS: Final[tuple[Pooling, ...]] = get_args(Pooling)


def _split(value: object) -> object:
    """Return the names of a text with commas between them."""
    return [part.strip() for part in value.split(",") if part.strip()] if isinstance(value, str) else value


AS_LIST: Final = BeforeValidator(lambda value: [value] if isinstance(value, str) else value)
"""A single text is a list of one."""


def _with_one_place(template: str) -> str:
    if template.count("{}") != 1:
        raise ValueError("it must have one {} where the label belongs, as in “This example is {}.”")
    return template


Count = Annotated[int, Field(ge=1)]
CountOrZero = Annotated[int, Field(ge=0)]
Text = Annotated[str, Field(min_length=1)]
Names = Annotated[list[Text], Field(min_length=1, max_length=1000), BeforeValidator(_split)]
"""A list, or a text with commas between the names."""
Template = Annotated[str, AfterValidator(_with_one_place)]
"""A sentence about a label."""


class Parameters(BaseModel):
    """The parameters of a task's requests. One that is null counts as missing."""

    model_config = ConfigDict(strict=True, extra="forbid", allow_inf_nan=False)

    @classmethod
    def of(cls, given: Mapping[str, object]) -> Self:
        """Return the parameters of a request. Raises InvalidInput for the first that is not taken."""
        try:
            return cls.model_validate({name: value for name, value in given.items() if value is not None})
        except ValidationError as error:
            kind, name, reason = _first_of(error)
            if kind == "extra_forbidden":
                takes = f"this endpoint takes {', '.join(cls.model_fields) or 'none'}"
                raise InvalidInput(f"Unknown parameter {name}", field="parameters", hint=takes) from error
            raise InvalidInput(f"{name}: {reason}", field=f"parameters.{name}") from error

    def given(self) -> dict[str, Any]:
        """Return those that were given."""
        return {name: value for name, value in self if value is not None}


class Options(BaseModel):
    """The options of an endpoint, which replace what the model's files say. The names of fields are `TaskConfig`'s."""

    model_config = ConfigDict(extra="forbid", str_strip_whitespace=True, str_min_length=1)

    task: str | None = None
    max_length: Count | None = None
    max_rows: Count | None = None
    max_chars: Count | None = None
    offload_chars: Count | None = None
    max_answer_bytes: Count | None = None
    max_output_bytes: Count | None = None
    long_texts: LongTexts | None = None
    stride: CountOrZero | None = None
    allow_empty: bool | None = None
    pooling: Pooling | None = None
    normalize: bool | None = None
    truncate_dim: Count | None = None
    activation: Activation | None = Field(None, alias="function_to_apply")
    top_k: Count | None = None
    aggregation: Aggregation | None = Field(None, alias="aggregation_strategy")
    ignored_labels: Names | None = Field(None, alias="ignore_labels")
    candidate_labels: Names | None = None
    hypothesis_template: Template | None = None
    multi_label: bool | None = None

    @classmethod
    def of(cls, given: Mapping[str, object]) -> dict[str, Any]:
        """Return the given options as fields of `TaskConfig`. Raises InvalidOption for the first that is not taken."""
        try:
            found = cls.model_validate(given)
        except ValidationError as error:
            kind, name, reason = _first_of(error)
            if kind == "extra_forbidden":
                raise InvalidOption(
                    f"Unknown option: {name}", hint=f"known are {', '.join(sorted(OPTIONS))}"
                ) from error
            raise InvalidOption(f"{name}: {reason}") from error
        chosen = {
            name: tuple(value) if isinstance(value, list) else value for name, value in found if value is not None
        }
        if found.pooling is not None:
            chosen["pooling"] = (found.pooling,)
        return chosen


OPTIONS: Final = tuple(field.alias or name for name, field in Options.model_fields.items())


def refuse_above(most: int, **given: int | None) -> None:
    """Raise InvalidInput for a parameter that is more than fits a model."""
    for name, value in given.items():
        if value is not None and value > most:
            raise InvalidInput(f"{name}: at most {most} fit here, not {value}", field=f"parameters.{name}")


def shown(name: object) -> str:
    """Return a client's name for something, shortened and printable."""
    return ascii(name)[1:-1][:40] if isinstance(name, str) else ascii(name)[:40]


def _first_of(error: ValidationError) -> tuple[str, str, str]:
    """Return kind, name and reason of the first fault; never the value, which may be a text."""
    first = error.errors(include_url=False, include_context=False, include_input=False)[0]
    return first["type"], shown(first["loc"][0]), first["msg"].removeprefix("Value error, ")

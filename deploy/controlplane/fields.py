"""The fields that the bodies of calls may contain, with their types.

`app` checks a body before a handler sees it, and `api/events` checks each event, so handlers read fields without
checking types again. A wrong type is refused (400/12) with the field's name. Unknown fields are ignored, as a ClearML
server does. Null counts as missing.
"""

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, create_model

from deploy.controlplane.envelope import JsonObject, validation_error

# deeper than any client sends; deeper values could not be stored
MAX_DEPTH = 100

# of a list item, which must have it
Key = Annotated[str, Field(min_length=1)]
# what a column can hold
Whole = Annotated[int, Field(ge=-(2**63), lt=2**63)]
Number = Annotated[float, Field(ge=-(2**63), lt=2**63, allow_inf_nan=False)]
Scalar = str | int | float | bool
Object = dict[str, Any]
Texts = Annotated[list[str], Field(max_length=10_000)]
Filter = str | Texts
# names of fields to sort by or to return: each one costs a look at every document
_Name = Annotated[str, Field(max_length=1000)]
Names = _Name | Annotated[list[_Name], Field(max_length=100)]


def _model(*required: str, **kinds: Any) -> type[BaseModel]:
    """An object with these fields; those that are not `required` may be missing or null."""
    settings = ConfigDict(strict=True, extra="ignore", protected_namespaces=())
    fields: Any = {name: (kind, ...) if name in required else (kind | None, None) for name, kind in kinds.items()}
    return create_model("Fields", __config__=settings, **fields)


_Section: Any = _model(name=str, value=str, type=str, description=str)
_Parameter: Any = _model(section=str, name=str, value=Scalar, type=str, description=str)
_Artifact: Any = _model(
    "key", key=Key, type=str, mode=Literal["input", "output"], uri=str, hash=str, content_size=Whole, timestamp=Whole,
    type_data=Object, display_data=list[Any],
)  # fmt: skip
_Metadata: Any = _model("key", key=Key, type=str, value=str)
_TaskModels: Any = list[_model(name=str, model=str)]  # type: ignore[misc]
_Execution: Any = _model(
    artifacts=list[_Artifact], parameters=Object, model_desc=Object, model_labels=Object, framework=str, queue=str,
    test_split=Number,
)  # fmt: skip

# of all calls but the queries; a field means the same wherever it is, except in `_PARTS`
_COMMON: dict[str, Any] = {
    **dict.fromkeys((
        "task", "model", "project", "name", "type", "comment", "description", "parent", "output_dest", "uri",
        "framework", "status_reason", "status_message", "default_output_destination",
    ), str),
    **dict.fromkeys(("force", "ready", "public", "publish", "publish_model", "publish_task", "clear_all",
                     "replace_metadata", "replace_configuration"), bool),
    **dict.fromkeys(("tags", "system_tags", "ids"), Texts),
    **dict.fromkeys(("container", "script", "output", "runtime", "requirements", "design"), Object),
    "iteration": Whole, "expiration_sec": Number, "configuration": dict[str, _Section | None],
    "hyperparams": dict[str, dict[str, _Parameter | None] | None],
    "execution": _Execution, "artifacts": list[_Artifact], "models": _model(input=_TaskModels, output=_TaskModels),
    "labels": dict[str, Whole | None], "metadata": dict[str, _Metadata | None],
    "replace_hyperparams": Literal["none", "section", "all"],
}  # fmt: skip
# calls that take a part of a Task or model as a list
_PARTS: dict[str, dict[str, Any]] = {
    "tasks.delete_models": {"models": list[_model("name", "type", name=Key, type=Literal["input", "output"])]},  # type: ignore[misc]
    "tasks.add_or_update_model": {"type": Literal["input", "output"]},
    "tasks.edit_hyper_params": {
        "hyperparams": list[_model("section", "name", section=Key, name=Key, value=Scalar, type=str, description=str)]  # type: ignore[misc]
    },
    "tasks.delete_hyper_params": {"hyperparams": list[_model("section", section=Key, name=str)]},  # type: ignore[misc]
    "tasks.edit_configuration": {"configuration": list[_model("name", name=Key, value=str, type=str)]},  # type: ignore[misc]
    "models.add_or_update_metadata": {"metadata": list[_Metadata]},
}
_BODY = _model(**_COMMON)
_BODIES = {name: _model(**_COMMON | parts) for name, parts in _PARTS.items()}
_QUERY = _model(
    **dict.fromkeys(("id", "type", "status", "tags", "system_tags", "project", "user", "parent", "task", "uri",
                     "framework"), Filter),
    name=Annotated[str, Field(max_length=10_000)], ready=bool, page=Whole, page_size=Whole, order_by=Names,
    only_fields=Names, search_hidden=bool, shallow_search=bool,
)  # fmt: skip
_EVENT = _model(
    task=str, type=str, metric=str, variant=str, iter=Whole, timestamp=Number, model_event=bool, allow_locked=bool,
)  # fmt: skip


def check(call: str, body: JsonObject) -> None:
    """Refuse a body with values of a wrong type.

    Raises:
        ApiError: 400/12 with the first field that is wrong.
    """
    fault = _fault(_model_of(call), body)
    if fault is None and is_too_deep(body):
        fault = f"nested deeper than {MAX_DEPTH} levels"
    if fault is not None:
        raise validation_error(fault)


def known(call: str) -> frozenset[str]:
    """The names of the fields of a call whose types are checked."""
    return frozenset(_model_of(call).model_fields)


def fault_of_event(event: JsonObject) -> str | None:
    """The fault of one event of a batch, None if there is none."""
    return "nested too deeply" if is_too_deep(event) else _fault(_EVENT, event)


def is_too_deep(value: Any) -> bool:
    """Return True if lists and objects are nested deeper than `MAX_DEPTH`."""
    level, depth = [value], 0
    while level:
        depth += 1
        if depth > MAX_DEPTH:
            return True
        parents = (parent.values() if isinstance(parent, dict) else parent for parent in level)
        level = [child for children in parents for child in children if isinstance(child, list | dict)]
    return False


def _model_of(call: str) -> type[BaseModel]:
    return _QUERY if call.endswith(".get_all") else _BODIES.get(call, _BODY)


def _fault(model: type[BaseModel], value: JsonObject) -> str | None:
    try:
        model.model_validate(value)
    except ValidationError as exc:
        first = exc.errors(include_url=False, include_context=False, include_input=False)[0]
        return f"{'.'.join(map(str, first['loc'])):.200}: {first['msg']:.200}"
    return None

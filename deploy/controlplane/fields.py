"""The fields that the bodies of calls may contain, as one table with the type of each value. Pure.

`app` checks a body before a handler sees it, and `api/events` checks each event, so handlers read fields without
checking types again. A wrong type is refused (400/12) with the field's name. Fields that are not in the table are
ignored, as a ClearML server does. Null counts as missing.
"""

from collections.abc import Callable, Mapping
from typing import Any

from deploy.controlplane.envelope import JsonObject, validation_error

# (value, its place) -> the fault, None if there is none
Kind = Callable[[Any, str], str | None]

# deeper than any client sends; deeper values could not be stored
MAX_DEPTH = 100
# most field names to sort by, return or search: each one costs a look at every document
MAX_NAMES = 100
MAX_NAME_LENGTH = 1000
MAX_PATTERN = 10_000
# most ids of one call
MAX_ITEMS = 10_000
_INT64 = 1 << 63


def text(value: Any, place: str) -> str | None:
    """A string."""
    return None if isinstance(value, str) else f"{place} must be a string"


def flag(value: Any, place: str) -> str | None:
    """True or false and nothing similar: the text "none" once counted as true and wiped a service."""
    return None if isinstance(value, bool) else f"{place} must be true or false"


def whole(value: Any, place: str) -> str | None:
    """An integer of 64 bits."""
    right = isinstance(value, int) and not isinstance(value, bool) and -_INT64 <= value < _INT64
    return None if right else f"{place} must be an integer of at most 64 bits"


def number(value: Any, place: str) -> str | None:
    """A number that a column can hold."""
    right = isinstance(value, int | float) and not isinstance(value, bool) and -_INT64 <= value < _INT64
    return None if right else f"{place} must be a number of at most 64 bits"


def scalar(value: Any, place: str) -> str | None:
    """Anything but lists and objects."""
    return f"{place} must be a single value" if isinstance(value, list | dict) else None


def mapping(value: Any, place: str) -> str | None:
    """An object with any values."""
    return None if isinstance(value, dict) else f"{place} must be an object"


def anything(value: Any, place: str) -> str | None:  # noqa: ARG001 - the form of a kind
    """Any value."""
    return None


def pattern(value: Any, place: str) -> str | None:
    """A regular expression. Its syntax is checked when it is compiled."""
    if not isinstance(value, str) or len(value) > MAX_PATTERN:
        return f"{place} must be a string of at most {MAX_PATTERN} characters"
    return None


def one_of(*values: str) -> Kind:
    """One of a few words."""

    def check(value: Any, place: str) -> str | None:
        return None if isinstance(value, str) and value in values else f"{place} must be one of {', '.join(values)}"

    return check


def list_of(kind: Kind, *, most: int = MAX_ITEMS) -> Kind:
    """A list whose items are of a kind."""

    def check(value: Any, place: str) -> str | None:
        if not isinstance(value, list):
            return f"{place} must be a list"
        if len(value) > most:
            return f"{place} must have at most {most} items"
        faults = (kind(item, f"{place}[{at}]") for at, item in enumerate(value))
        return next((fault for fault in faults if fault), None)

    return check


def one_or_list_of(kind: Kind, *, most: int = MAX_ITEMS) -> Kind:
    """A value of a kind, or a list of them."""
    several = list_of(kind, most=most)
    return lambda value, place: (several if isinstance(value, list) else kind)(value, place)


def map_of(kind: Kind) -> Kind:
    """An object whose values are of a type, or null."""

    def check(value: Any, place: str) -> str | None:
        if not isinstance(value, dict):
            return f"{place} must be an object"
        faults = (kind(item, f"{place}.{key:.50}") for key, item in value.items() if item is not None)
        return next((fault for fault in faults if fault), None)

    return check


def record(*required: str, **kinds: Kind) -> Kind:
    """An object with known fields. `required` ones must be present and not empty; unknown ones are ignored."""

    def check(value: Any, place: str) -> str | None:
        if not isinstance(value, dict):
            return f"{place} must be an object"
        for name in required:
            if value.get(name) in (None, ""):
                return f"{place}.{name} is missing"
        found = ((name, kind) for name, kind in kinds.items() if value.get(name) is not None)
        faults = (kind(value[name], f"{place}.{name}") for name, kind in found)
        return next((fault for fault in faults if fault), None)

    return check


def _name(value: Any, place: str) -> str | None:
    if not isinstance(value, str) or len(value) > MAX_NAME_LENGTH:
        return f"{place} must be a string of at most {MAX_NAME_LENGTH} characters"
    return None


TEXTS = list_of(text)
# only_fields, order_by: names of fields
NAMES = one_or_list_of(_name, most=MAX_NAMES)
# a filter of a query: any-of values, with operators and nulls between them
FILTER = one_or_list_of(scalar)
IDS = one_or_list_of(text)

_CONFIGURATION = {"name": text, "value": text, "type": text, "description": text}
_PARAMETER = {"section": text, "name": text, "value": scalar, "type": text, "description": text}
_ARTIFACT: dict[str, Kind] = {
    "key": text, "type": text, "mode": one_of("input", "output"), "uri": text, "hash": text, "content_size": whole,
    "timestamp": whole, "type_data": mapping, "display_data": list_of(anything),
}  # fmt: skip
_ARTIFACTS = list_of(record("key", **_ARTIFACT))
_METADATA = {"key": text, "type": text, "value": text}
_TASK_MODELS = list_of(record(name=text, model=text))

_TASK = {"task": text, "force": flag}
_STATUS = {**_TASK, "status_reason": text, "status_message": text}
_DEFINITION: dict[str, Kind] = {
    "name": text, "type": text, "comment": text, "parent": text, "project": text, "output_dest": text,
    "tags": TEXTS, "system_tags": TEXTS, "container": mapping, "script": mapping, "output": mapping,
    "configuration": map_of(record(**_CONFIGURATION)), "hyperparams": map_of(map_of(record(**_PARAMETER))),
    "runtime": mapping, "models": record(input=_TASK_MODELS, output=_TASK_MODELS),
    "execution": record(artifacts=_ARTIFACTS, parameters=mapping, model_desc=mapping, model_labels=mapping,
                        framework=text, queue=text, test_split=number),
}  # fmt: skip
_MODEL: dict[str, Kind] = {
    "model": text, "name": text, "uri": text, "comment": text, "framework": text, "project": text, "task": text,
    "parent": text, "tags": TEXTS, "system_tags": TEXTS, "labels": map_of(whole), "design": mapping, "ready": flag,
    "public": flag, "metadata": map_of(record("key", **_METADATA)), "iteration": whole,
}  # fmt: skip
_PROJECT: dict[str, Kind] = {
    "project": text, "name": text, "description": text, "tags": TEXTS, "system_tags": TEXTS,
    "default_output_destination": text,
}  # fmt: skip
_SEARCH = record(fields=NAMES, pattern=pattern)
_QUERY: dict[str, Kind] = {
    **dict.fromkeys(("id", "type", "status", "tags", "system_tags", "project", "user", "parent", "task", "uri",
                     "framework", "basename"), FILTER),
    **dict.fromkeys(("created", "last_update", "last_change", "status_changed", "started", "completed"), FILTER),
    "name": pattern, "ready": flag, "page": whole, "page_size": whole, "order_by": NAMES, "only_fields": NAMES,
    "search_hidden": flag, "shallow_search": flag, "include_subprojects": flag, "_any_": _SEARCH, "_all_": _SEARCH,
}  # fmt: skip
_EVENTS: dict[str, Kind] = {
    "task": text, "batch_size": whole, "scroll_id": text, "event_type": text, "order": one_of("asc", "desc"),
    "iters": whole, "from_timestamp": number, "navigate_earlier": flag, "samples": whole, "key": text,
    "model_events": flag, "tasks": list_of(text, most=MAX_NAMES),
    "metrics": list_of(record("task", task=text, metric=text, variants=TEXTS), most=MAX_NAMES),
}  # fmt: skip
_EVENT: dict[str, Kind] = {
    "task": text, "type": text, "metric": text, "variant": text, "iter": whole, "timestamp": number, "worker": text,
    "level": scalar, "msg": text, "plot_str": text, "key": text, "url": text, "model_event": flag,
    "allow_locked": flag,
}  # fmt: skip
_MANY: dict[str, Kind] = {"ids": IDS}
_SERVING: dict[str, Kind] = {}

# call -> field -> kind; the calls of one kind share their fields
BODIES: Mapping[str, Mapping[str, Kind]] = {
    "auth.login": {"expiration_sec": number},
    "auth.validate_token": {"token": text},
    "projects.create": _PROJECT,
    "projects.update": _PROJECT,
    "projects.get_by_id": {"project": text},
    "tasks.create": _DEFINITION,
    "tasks.edit": {**_DEFINITION, **_STATUS},
    "tasks.update": {**_DEFINITION, **_STATUS},
    "tasks.clone": {
        "task": text, "new_task_name": text, "new_task_comment": text, "new_task_parent": text,
        "new_task_project": text, "new_task_tags": TEXTS, "new_task_system_tags": TEXTS,
        "new_task_hyperparams": _DEFINITION["hyperparams"],
        "new_task_configuration": _DEFINITION["configuration"],
    },
    "tasks.set_requirements": {**_TASK, "requirements": mapping},
    "tasks.add_or_update_artifacts": {**_TASK, "artifacts": _ARTIFACTS},
    "tasks.delete_artifacts": {**_TASK, "artifacts": _ARTIFACTS},
    "tasks.add_or_update_model": {**_TASK, "name": text, "model": text, "type": text, "iteration": whole},
    "tasks.delete_models": {**_TASK, "models": list_of(record("name", "type", name=text, type=text))},
    "tasks.edit_hyper_params": {
        **_TASK, "hyperparams": list_of(record("section", "name", **_PARAMETER)),
        "replace_hyperparams": one_of("none", "section", "all"),
    },
    "tasks.delete_hyper_params": {**_TASK, "hyperparams": list_of(record("section", **_PARAMETER))},
    "tasks.get_hyper_params": {"tasks": IDS},
    "tasks.get_configurations": {"tasks": IDS, "names": TEXTS},
    "tasks.edit_configuration": {
        **_TASK, "configuration": list_of(record("name", **_CONFIGURATION)), "replace_configuration": flag,
    },
    "tasks.delete_configuration": {**_TASK, "configuration": TEXTS},
    "tasks.completed": {**_STATUS, "publish": flag, "publish_model": flag},
    "tasks.publish": {**_STATUS, "publish_model": flag},
    "tasks.reset": {**_STATUS, "clear_all": flag},
    "tasks.archive": {"tasks": IDS},
    **dict.fromkeys(("tasks.get_by_id", "tasks.get_by_id_ex", "tasks.ping"), _TASK),
    **dict.fromkeys(("tasks.started", "tasks.stopped", "tasks.stop", "tasks.failed", "tasks.delete"), _STATUS),
    **dict.fromkeys(("tasks.archive_many", "tasks.unarchive_many"), _MANY),
    **dict.fromkeys(("tasks.get_all", "tasks.get_all_ex", "models.get_all", "models.get_all_ex", "projects.get_all",
                     "projects.get_all_ex"), _QUERY),
    **dict.fromkeys(("models.create", "models.edit", "models.update"), _MODEL),
    "models.get_by_id": {"model": text},
    "models.set_ready": {"model": text, "publish_task": flag, "force_publish_task": flag},
    "models.delete": {"model": text, "force": flag},
    "models.publish_many": {"ids": IDS, "publish_task": flag, "force_publish_task": flag},
    **dict.fromkeys(("models.archive_many", "models.unarchive_many"), _MANY),
    "models.add_or_update_metadata": {
        "model": text, "metadata": list_of(record("key", **_METADATA)), "replace_metadata": flag,
    },
    "models.delete_metadata": {"model": text, "keys": TEXTS},
    "events.add": _EVENT,
    # lines, checked one by one
    "events.add_batch": {},
    **dict.fromkeys(("events.get_task_log", "events.get_task_events", "events.get_task_plots", "events.debug_images",
                     "events.scalar_metrics_iter_histogram", "events.get_task_single_value_metrics",
                     "events.get_task_latest_scalar_values"), _EVENTS),
    **dict.fromkeys(("serving.container_status_report", "serving.register_container",
                     "serving.unregister_container"), _SERVING),
}  # fmt: skip

# queries may filter by values inside of a document: `metadata.<key>.value`
_DOTTED = ("metadata.", "labels.", "hyperparams.", "runtime.", "execution.", "configuration.", "script.", "models.",
           "last_metrics.")  # fmt: skip


def check(call: str, body: JsonObject) -> None:
    """Refuse a body with values of a wrong kind.

    Raises:
        ApiError: 400/12 with the first field that is wrong.
    """
    kinds = BODIES.get(call, {})
    for name, value in body.items():
        kind = kinds.get(name)
        if kind is None and kinds is _QUERY and name.startswith(_DOTTED):
            kind = _dotted
        fault = kind(value, name) if kind is not None and value is not None else None
        if fault:
            raise validation_error(fault)


def fault_of_event(event: JsonObject) -> str | None:
    """The fault of one event of a batch, None if there is none."""
    return next(
        (fault for name, kind in _EVENT.items() if event.get(name) is not None and (fault := kind(event[name], name))),
        None,
    )


def is_too_deep(value: Any) -> bool:
    """Return True if lists and objects are nested deeper than `MAX_DEPTH`."""
    level, depth = [value], 0
    while level:
        depth += 1
        if depth > MAX_DEPTH:
            return True
        level = [
            child
            for parent in level
            for child in (parent.values() if isinstance(parent, dict) else parent)
            if isinstance(child, list | dict)
        ]
    return False


def _dotted(value: Any, place: str) -> str | None:
    if len(place) > MAX_NAME_LENGTH:
        return f"a field's name must have at most {MAX_NAME_LENGTH} characters"
    return FILTER(value, place)

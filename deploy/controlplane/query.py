"""ClearML's list queries: which documents a `*.get_all` body selects, in which order, page and fields. Pure.

It knows what the stock CLI, the SDK's common searches and the gateway ask for: a pattern for the name, equality,
lists with excluded values, order, pages. Anything else that would select is refused: an ignored filter would answer
with wrong documents.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from pydantic_core import SchemaError, SchemaValidator, core_schema

from deploy.controlplane.envelope import ApiError, JsonObject, validation_error

MAX_PAGE_SIZE = 500

Predicate = Callable[[Mapping[str, Any]], bool]

LISTS = ("id", "type", "status", "tags", "system_tags", "project", "user", "parent", "task", "uri", "framework")
REFUSED = ("_any_", "_all_", "created", "last_update", "last_change", "status_changed", "started", "completed",
           "include_subprojects")  # fmt: skip


def select(documents: Iterable[JsonObject], body: Mapping[str, Any]) -> list[JsonObject]:
    """The documents `body` asks for: filtered, ordered, cut to the page and to the fields.

    `documents` arrive in insertion order; that is the order of the answer where `order_by` does not say otherwise.

    Raises:
        ApiError: 400/21 for a bad pattern, 400/12 for a bad page or a filter that is not known here.
    """
    tests = [test for key, value in body.items() if value is not None and (test := _predicate(key, value)) is not None]
    if not (body.get("search_hidden") or body.get("id")):
        tests.append(lambda document: "hidden" not in _listed(document.get("system_tags")))
    chosen = [document for document in documents if all(test(document) for test in tests)]
    paths, order = _listed(body.get("only_fields")), _listed(body.get("order_by"))
    return [_only(document, paths) for document in _page(_ordered(chosen, order), body)]


def _predicate(key: str, value: Any) -> Predicate | None:
    if key in REFUSED and value is not False:
        raise validation_error(f"this control plane cannot filter by {key}")
    if key == "name":
        return _pattern(str(value))
    if key == "ready":
        return lambda document: bool(document.get(key)) is value
    if key in LISTS or "." in key:
        return _any_of(key, _listed(value))
    return None


def _any_of(key: str, values: list[Any]) -> Predicate | None:
    """A field with one of the plain values and none of the excluded ones (`-value`). A scalar is a list of one."""
    if not all(isinstance(value, str | int | float) and not str(value).startswith("__$") for value in values):
        raise validation_error(f"{key}: this control plane knows plain values and -values only")
    excluded = {value[1:] for value in values if _is_operator(value)}
    wanted = {value for value in values if not _is_operator(value)}

    def test(document: Mapping[str, Any]) -> bool:
        present = {item for item in _listed(_at(document, key)) if isinstance(item, str | int | float)}
        return not present & excluded and (not wanted or bool(present & wanted))

    return test if values else None


def _pattern(pattern: str) -> Predicate:
    """Search the name by a regular expression in time linear in the length of the text.

    pydantic's engine is Rust's `regex`: it has no look-around and no back-references, and no pattern makes it backtrack
    (`^(a+)+$` kept Python's `re`, and every other caller, busy for minutes).
    """
    try:
        regex = SchemaValidator(core_schema.str_schema(pattern=pattern))
    except SchemaError as exc:
        reason = str(exc).rpartition("error: ")[2].rpartition("SchemaError: ")[2].strip()
        raise ApiError(400, 21, f"Malformed regular expression: {reason:.200}") from exc
    return lambda document: regex.isinstance_python(str(document.get("name") or ""))


def _ordered(documents: list[JsonObject], keys: list[str]) -> list[JsonObject]:
    """Sorted by `keys` (`-` is descending).

    Ties of a descending first key come newest first, so that "latest" is well defined.
    """
    ordered = documents[::-1] if keys and keys[0].startswith("-") else list(documents)
    for key in reversed(keys):
        # reverse=True also keeps the order of equal elements
        ordered.sort(key=lambda document: _sort_key(_at(document, key.lstrip("+-"))), reverse=key.startswith("-"))
    return ordered


def _page(documents: list[JsonObject], body: Mapping[str, Any]) -> list[JsonObject]:
    """Cut `page`/`page_size`. Clients loop while a page is full, so a page past the end must be empty."""
    number, size = body.get("page") or 0, body.get("page_size")
    if body.get("page") is None and size is None:
        return documents
    if number < 0:
        raise validation_error("page must not be negative")
    size = min(MAX_PAGE_SIZE, size) if size and size > 0 else MAX_PAGE_SIZE
    return documents[number * size : (number + 1) * size]


def _only(document: JsonObject, paths: list[str]) -> JsonObject:
    """The part of `document` that `paths` (dotted) name, and always its id. No paths: everything."""
    if not paths:
        return document
    chosen: JsonObject = {"id": document["id"]}
    for path in paths:
        source: Any = document
        target = chosen
        *parents, last = path.split(".")
        for name in parents:
            source = source.get(name) if isinstance(source, Mapping) else None
            target = target.setdefault(name, {}) if isinstance(source, Mapping) else {}
        if isinstance(source, Mapping) and last in source:
            target[last] = source[last]
    return chosen


def _at(document: Mapping[str, Any], path: str) -> Any:
    """Value at a dotted path, None where any step is missing."""
    value: Any = document
    for name in path.split("."):
        value = value.get(name) if isinstance(value, Mapping) else None
    return value


def _listed(value: Any) -> list[Any]:
    if value is None:
        return []
    return list(value) if isinstance(value, list) else [value]


def _is_operator(value: Any) -> bool:
    return isinstance(value, str) and value.startswith("-")


def _sort_key(value: Any) -> tuple[int, Any]:
    """Missing values before numbers before everything else."""
    if value is None:
        return (0, 0)
    return (1, value) if isinstance(value, int | float) else (2, str(value))

"""ClearML's list queries: which documents a `*.get_all` body selects, in which order, page and fields. Pure.

`api/{tasks,models,projects}` call it with plain documents. It never touches the store and never changes a document.
"""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pydantic_core import SchemaError, SchemaValidator, core_schema

from deploy.controlplane.envelope import ApiError, JsonObject

MAX_PAGE_SIZE = 500
# most characters of a field that is searched by a pattern
MAX_SEARCHED = 10_000

Predicate = Callable[[Mapping[str, Any]], bool]

_AND = frozenset({"__$all", "__$and"})
_OR = frozenset({"__$any", "__$or"})
_NOT = "__$not"
_COMPARISON = re.compile(r"^(>=|<=|>|<)(.+)$")


def field_at(document: Mapping[str, Any], path: str) -> Any:
    """Value at a dotted path, None where any step is missing.

    Keys that themselves contain dots (hyperparameter and metadata names do) win over deeper nesting.
    """
    if path in document:
        return document[path]
    head, dot, rest = path.partition(".")
    while dot:
        value = document.get(head)
        if isinstance(value, Mapping):
            found = field_at(value, rest)
            if found is not None:
                return found
        more, dot, rest = rest.partition(".")
        head = f"{head}.{more}"
    return None


@dataclass(frozen=True, slots=True)
class ListFilter:
    """One ClearML list filter, e.g. `tags: ["a", "-b"]`.

    `any_of`: at least one must be present (a plain list is OR). `all_of`: every one must be present. `none_of`: not
    one may be present (a leading `-`, or the value after `__$not`). `or_empty`/`and_empty`: null was among the
    values.
    """

    any_of: frozenset[Any]
    all_of: frozenset[Any]
    none_of: frozenset[Any]
    or_empty: bool = False
    and_empty: bool = False
    not_empty: bool = False

    @classmethod
    def parse(cls, values: Sequence[Any]) -> "ListFilter":
        """Read the wire form. An operator sets how the values after it combine."""
        any_of: set[Any] = set()
        all_of: set[Any] = set()
        none_of: set[Any] = set()
        or_empty = and_empty = not_empty = False
        conjunctive = negate = False
        for raw in values:
            value: Any = raw
            if isinstance(value, str):
                if value in _AND:
                    conjunctive = True
                    continue
                if value in _OR:
                    conjunctive = False
                    continue
                if value == _NOT:
                    negate = True
                    continue
                if value.startswith("-"):
                    value, negate = value[1:], True
            if value is None:
                not_empty |= negate
                and_empty |= conjunctive and not negate
                or_empty |= not conjunctive and not negate
            elif negate:
                none_of.add(_hashable(value))
            elif conjunctive:
                all_of.add(_hashable(value))
            else:
                any_of.add(_hashable(value))
            negate = False
        return cls(frozenset(any_of), frozenset(all_of), frozenset(none_of), or_empty, and_empty, not_empty)

    def accepts(self, value: Any) -> bool:
        """Return True if a field with `value` passes. A scalar counts as a list of one, a missing value as empty."""
        present = frozenset(_hashable(item) for item in _as_list(value))
        if present & self.none_of or (self.not_empty and not present):
            return False
        if not self.all_of <= present or (self.and_empty and present):
            return False
        if self.any_of or self.or_empty:
            return bool(present & self.any_of) or (self.or_empty and not present)
        return True


@dataclass(frozen=True, slots=True, kw_only=True)
class Schema:
    """The body keys of one `get_all` that are filters, by kind. Other keys are ignored, as ClearML does."""

    list_fields: frozenset[str]
    flag_fields: frozenset[str] = frozenset()
    range_fields: frozenset[str] = frozenset(
        {"created", "last_update", "last_change", "status_changed", "started", "completed"}
    )
    dotted_prefixes: tuple[str, ...] = ()


def predicates(body: Mapping[str, Any], schema: Schema) -> list[Predicate]:
    """Everything a document must satisfy.

    Raises:
        ApiError: 400/21 when a pattern is not a regular expression, or one that could take for ever.
    """
    found: list[Predicate] = []
    for key, value in body.items():
        if value is None:
            continue
        if key == "name":
            found.append(_pattern(["name"], str(value)))
        elif key in ("_any_", "_all_") and isinstance(value, Mapping):
            found.append(_multi_field(value))
        elif key in schema.list_fields:
            found.append(_in_list(key, _as_list(value)))
        elif key in schema.flag_fields:
            found.append(_flag(key, value is True))
        elif key in schema.range_fields:
            found.extend(_range(key, str(item)) for item in _as_list(value))
        elif key.startswith(schema.dotted_prefixes) and "." in key:
            found.append(_in_list(key, _as_list(value)))
    if not (body.get("search_hidden") or body.get("id")):
        found.append(lambda document: "hidden" not in (document.get("system_tags") or ()))
    return found


def select(documents: Iterable[JsonObject], body: Mapping[str, Any], schema: Schema) -> list[JsonObject]:
    """The documents `body` asks for: filtered, ordered and cut to the page, but still whole.

    `documents` arrive in insertion order; that is the order of the answer where `order_by` does not say otherwise.

    Raises:
        ApiError: 400/21 for a bad pattern, 400/12 for a bad page.
    """
    tests = predicates(body, schema)
    chosen = [document for document in documents if all(test(document) for test in tests)]
    return page(order(chosen, _as_list(body.get("order_by"))), body)


def order(documents: list[JsonObject], keys: Sequence[Any]) -> list[JsonObject]:
    """Sort by `keys` (`-` is descending).

    Ties of a descending first key come newest first, so that "latest" is well defined.
    """
    fields = [key for key in keys if isinstance(key, str) and not key.startswith("@")]
    if not fields:
        return documents
    ordered = documents[::-1] if fields[0].startswith("-") else list(documents)
    for key in reversed(fields):
        name = key.removeprefix("-").removeprefix("+")
        # reverse=True also keeps the order of equal elements
        ordered.sort(key=_key_of(name), reverse=key.startswith("-"))
    return ordered


def page(documents: list[JsonObject], body: Mapping[str, Any]) -> list[JsonObject]:
    """Cut `page`/`page_size`. Clients loop while a page is full, so a page past the end must be empty."""
    number, size = body.get("page"), body.get("page_size")
    if number is None and size is None:
        return documents
    if not all(isinstance(item, int | None) for item in (number, size)) or (number or 0) < 0:
        raise ApiError(400, 12, "Validation error (page and page_size must be non-negative integers)")
    size = min(MAX_PAGE_SIZE, size) if size and size > 0 else MAX_PAGE_SIZE
    start = (number or 0) * size
    return documents[start : start + size]


def project(document: JsonObject, only_fields: Any) -> JsonObject:
    """The part of `document` that `only_fields` names (dotted paths), and always its id. No names: everything."""
    paths = [item for item in _as_list(only_fields) if isinstance(item, str)]
    if not paths:
        return document
    excluded = {path[1:] for path in paths if path.startswith("-")}
    wanted = [path for path in paths if not path.startswith("-")]
    if not wanted:
        return {key: value for key, value in document.items() if key not in excluded}
    chosen: JsonObject = {"id": document["id"]} if "id" in document else {}
    for path in wanted:
        _copy_path(document, chosen, path)
    return chosen


def _copy_path(source: Mapping[str, Any], target: JsonObject, path: str) -> None:
    if path in source:
        target[path] = source[path]
        return
    head, dot, rest = path.partition(".")
    if not dot or head not in source:
        return
    value = source[head]
    if isinstance(value, Mapping):
        child = target.setdefault(head, {})
        if isinstance(child, dict) and child is not value:
            _copy_path(value, child, rest)
    elif isinstance(value, list):
        rows = target.setdefault(head, [{} for _ in value])
        for row, item in zip(rows, value, strict=True):
            if isinstance(item, Mapping):
                _copy_path(item, row, rest)


def exact(value: Any) -> list[str] | None:
    """The values of a list filter that a database index can look up. None if it has operators, exclusions or nulls."""
    values = _as_list(value)
    plain = all(isinstance(item, str) and not item.startswith(("-", "__$")) for item in values)
    return values if values and plain else None


def _in_list(key: str, values: Sequence[Any]) -> Predicate:
    if not values:
        return lambda _: True
    accepted = ListFilter.parse(values)
    return lambda document: accepted.accepts(field_at(document, key))


def _flag(key: str, wanted: bool) -> Predicate:
    return lambda document: bool(document.get(key)) is wanted


def _range(key: str, text: str) -> Predicate:
    comparison = _COMPARISON.match(text)
    if comparison is None:
        return lambda document: str(document.get(key) or "").startswith(text)
    operator, bound = comparison.groups()
    bound = bound.strip().replace(" ", "T")

    def test(document: Mapping[str, Any]) -> bool:
        # ISO-8601 in UTC sorts as text; a bound may be shorter ("2026-11") and still compares correctly
        value = document.get(key)
        if not isinstance(value, str):
            return False
        if operator == ">=":
            return value >= bound
        if operator == "<=":
            return value <= bound
        return value > bound if operator == ">" else value < bound

    return test


def _multi_field(body: Mapping[str, Any]) -> Predicate:
    pattern = body.get("pattern")
    fields = [str(item) for item in _as_list(body.get("fields"))]
    if pattern is None or not fields:
        return lambda _: True
    # a real server ignores case here, and only here
    return _pattern(fields, str(pattern), case_sensitive=False)


def _pattern(fields: Sequence[str], pattern: str, *, case_sensitive: bool = True) -> Predicate:
    """Search by a regular expression in time linear in the length of the text.

    pydantic's engine is Rust's `regex`: it has no look-around and no back-references, and no pattern makes it backtrack
    (`^(a+)+$` kept Python's `re`, and every other caller, busy for minutes).
    """
    whole = pattern if case_sensitive else f"(?i:{pattern})"
    try:
        regex = SchemaValidator(core_schema.str_schema(pattern=whole))
    except SchemaError as exc:
        reason = str(exc).rpartition("error: ")[2].rpartition("SchemaError: ")[2].strip()
        raise ApiError(400, 21, f"Malformed regular expression: {reason:.200}") from exc

    def test(document: Mapping[str, Any]) -> bool:
        texts = (str(field_at(document, field) or "")[:MAX_SEARCHED] for field in fields)
        return any(regex.isinstance_python(text) for text in texts)

    return test


def _as_list(value: Any) -> list[Any]:
    if value is None:
        return []
    return list(value) if isinstance(value, list | tuple) else [value]


def _hashable(value: Any) -> Any:
    return value if isinstance(value, str | int | float | bool) else repr(value)


def _key_of(name: str) -> Callable[[JsonObject], tuple[int, Any]]:
    return lambda document: _sort_key(field_at(document, name))


def _sort_key(value: Any) -> tuple[int, Any]:
    if value is None:
        return (0, 0)
    if isinstance(value, bool | int | float):
        return (1, value)
    return (2, str(value))

"""Three-way merges, pure: what a writer meant to change, applied to what others have written in the meantime.

ClearML's clients change a Task by reading it whole, changing a part in memory and writing that part back whole; two
writers at once lose one change (two concurrent `model add`, one endpoint remains). Here a write is compared
with what its writer had read (`base`), and only the difference is applied to the stored value (`theirs`).

Laws (tests/unit/deploy/controlplane/test_merge.py): no concurrent change -> exactly what was written; nothing changed
by the writer -> exactly what is stored; changes of different keys -> both; the same key changed by both -> the writer
wins. Called by `edits`. Never does I/O.
"""

import operator
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any, TypeVar

from deploy.tools import sections

K = TypeVar("K", bound=Hashable)

Same = Callable[[Any, Any], bool]

_ABSENT = object()


def merge_maps(
    base: Mapping[K, Any], mine: Mapping[K, Any], theirs: Mapping[K, Any], *, same: Same = operator.eq
) -> dict[K, Any]:
    """Apply the difference from `base` to `mine` onto `theirs`, key by key; on a conflict `mine` wins.

    `same` says whether two values count as equal, i.e. whether `mine` has changed a key at all.
    """
    merged: dict[K, Any] = {}
    for key in [*theirs, *(key for key in mine if key not in theirs)]:
        is_in_both = key in base and key in mine
        is_changed = not same(base[key], mine[key]) if is_in_both else key in base or key in mine
        value = (mine if is_changed else theirs).get(key, _ABSENT)
        if value is not _ABSENT:
            merged[key] = value
    return merged


def distance(base: Mapping[K, Any], mine: Mapping[K, Any], *, same: Same = operator.eq) -> tuple[int, int]:
    """The size of the change that `mine` would be if its writer had started from `base`.

    Added or removed keys count before changed values: clients rewrite values in passing (the CLI adds `version = ""` to
    what it has loaded), but they work on the set of keys.
    """
    keys = len(base.keys() ^ mine.keys())
    return keys, sum(not same(base[key], mine[key]) for key in base.keys() & mine.keys())


def choose_base(
    candidates: Sequence[Mapping[K, Any]], mine: Mapping[K, Any], *, same: Same = operator.eq
) -> Mapping[K, Any]:
    """The value the writer most likely started from: the one that makes its change smallest, the later one on a tie.

    A client may read a Task several times before it writes (the SDK re-reads just before each write), while its
    in-memory copy is from an earlier read; a change someone made between the two would look like a deletion by this
    writer.
    """
    return min(enumerate(candidates), key=lambda item: (*distance(item[1], mine, same=same), -item[0]))[1]


def merge_texts(bases: Sequence[str], mine: str, theirs: str) -> str:
    """Merge HOCON sections by their top-level keys. Texts are kept to the byte where nothing has to be combined.

    `bases` are the texts that the writer may have started from, oldest first; without any, the write is taken as it is.

    Raises:
        Unparsable: `mine` is not readable, or the merged section has no readable form.
    """
    if not bases or mine == theirs or all(base == theirs for base in bases):
        return mine
    try:
        written = sections.parse(mine)
        stored = sections.parse(theirs)
        read = [sections.parse(base) for base in dict.fromkeys(bases)]
    except sections.Dynamic:
        return mine
    base = choose_base(read, written, same=_is_same_entry)
    merged = merge_maps(base, written, stored, same=_is_same_entry)
    if merged == written:
        return mine
    if merged == stored:
        return theirs
    return sections.render(merged)


def _is_same_entry(one: Any, other: Any) -> bool:
    """Whether two entries say the same: the CLI writes or leaves out empty fields as it happens."""
    return bool(_without_empty(one) == _without_empty(other))


def _without_empty(entry: Any) -> Any:
    if not isinstance(entry, Mapping):
        return entry
    return {key: value for key, value in entry.items() if value is not None and value != ""}


def keyed(items: Sequence[Any], *names: str) -> dict[tuple[str, ...], Any]:
    """A list of objects as a map by the fields that identify them (artifacts: key and mode; models: name)."""
    return {tuple(str(item.get(name) or "") for name in names): item for item in items if isinstance(item, Mapping)}


def flattened(nested: Mapping[str, Any]) -> dict[tuple[str, str], Any]:
    """Two-level maps (hyperparameters: section, then name) as one map, so that they merge by parameter."""
    return {
        (section, name): value
        for section, names in nested.items()
        if isinstance(names, Mapping)
        for name, value in names.items()
    }


def nested(flat: Mapping[tuple[str, str], Any]) -> dict[str, dict[str, Any]]:
    """The inverse of `flattened`."""
    result: dict[str, dict[str, Any]] = {}
    for (section, name), value in flat.items():
        result.setdefault(section, {})[name] = value
    return result

"""Renders the reference parts of the documentation from the code they describe: settings, metrics, errors, commands.

Called by ``test_reference.py``, which compares the result with what is committed (and rewrites it when ``UPDATE_DOCS``
is set), so that a page cannot tell what the code no longer does. Pure: values in, Markdown out.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from typing import Final

from pydantic import AliasChoices

from gateway import errors
from gateway.edge.http.addresses import ADDRESSES
from gateway.errors import STATUS
from gateway.metrics.catalog import CATALOG
from gateway.metrics.variables import BUILT_IN
from gateway.settings import SHARES, Settings

_BLOCK: Final = "<!-- generated: {name} -->\n{text}\n<!-- end -->"
_MARK: Final = re.compile(r"<!-- generated: (\w+) -->\n(?:.*?\n)??<!-- end -->", re.S)


def settings_table() -> str:
    """Return every setting of the gateway: names, default, meaning."""
    rows = ["| variable | default | meaning |", "|---|---|---|"]
    for name, field in Settings.model_fields.items():
        alias = field.validation_alias
        names = [str(c) for c in alias.choices if str(c).isupper()] if isinstance(alias, AliasChoices) else [name]
        default = field.get_default()
        unit = " s" if isinstance(default, float) and name not in SHARES else ""
        shown = f"`{default}{unit}`" if default != "" else "–"
        rows.append(f"| {'<br>'.join(f'`{n}`' for n in names)} | {shown} | {field.description} |")
    return "\n".join(rows)


def metrics_table() -> str:
    """Return every metric family: name, type, labels, meaning."""
    rows = ["| metric | type | labels | meaning |", "|---|---|---|---|"]
    rows += [
        f"| `{m.name}` | {m.type} | {', '.join(f'`{label}`' for label in m.labels) or '–'} | {m.help} |"
        for m in CATALOG
    ]
    return "\n".join(rows)


def errors_table() -> str:
    """Return every error a caller can get: status, code, whether a retry can help, meaning."""
    rows = ["| status | `code` | retry? | meaning |", "|---|---|---|---|"]
    found = [e for e in _tree(errors.GatewayError) if not issubclass(e, errors.ControlError)]
    for error in sorted(found, key=lambda e: (STATUS[e.kind], e.kind)):
        if error is errors.GatewayError:
            continue
        meaning = " ".join((inspect.getdoc(error) or "").split("\n\n")[0].split())
        rows.append(f"| {STATUS[error.kind]} | `{error.kind}` | {'yes' if error.retryable else 'no'} | {meaning} |")
    return "\n".join(rows)


def variables_table() -> str:
    """Return every built-in variable of text tasks: name, kind, meaning."""
    kinds = {name: "enum" if name in ("truncated", "predicted_label") else "scalar" for name in BUILT_IN}
    rows = ["| variable | kind | meaning |", "|---|---|---|"]
    return "\n".join([*rows, *(f"| `{name}` | {kinds[name]} | {meaning} |" for name, meaning in BUILT_IN.items())])


def addresses_table() -> str:
    """Return every inference address: protocol, path, which endpoints it is for."""
    rows = ["| protocol | `POST` | for |", "|---|---|---|"]
    return "\n".join([*rows, *(f"| {a.protocol} | `{a.path}` | {a.asks} |" for a in ADDRESSES)])


PARTS: Final = {
    "variables": variables_table, "settings": settings_table, "metrics": metrics_table, "errors": errors_table,
    "addresses": addresses_table,
}  # fmt: skip
"""What a page can ask for with ``<!-- generated: NAME -->`` … ``<!-- end -->``."""


def refresh(page: str) -> str:
    """Return ``page`` with every generated block brought up to date."""
    return _MARK.sub(lambda found: _BLOCK.format(name=found[1], text=PARTS[found[1]]()), page)


def _tree(error: type[errors.GatewayError]) -> Iterator[type[errors.GatewayError]]:
    yield error
    for sub in error.__subclasses__():
        # Any other is a module's own, which callers see as the error it is a kind of.
        if sub.kind != error.kind or error is errors.GatewayError:
            yield from _tree(sub)

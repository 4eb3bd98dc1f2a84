"""The read-only web page that lists registered objects.

`app` answers every web link that the ClearML tools print with it. It shows names, ids, states and addresses, and never
configuration values, hyperparameters or anything else that may contain a secret.
"""

from collections.abc import Sequence
from html import escape
from typing import Any

from deploy.controlplane.api import models, projects, tasks
from deploy.controlplane.envelope import JsonObject
from deploy.controlplane.store import Store

LIMIT = 200
SERVING_TAG = "serving-control-plane"
_SECTIONS = frozenset({"endpoints", "canary", "model_monitoring", "model_monitoring_eps", "metric_logging"})

_STYLE = (
    "body{font:15px/1.5 system-ui,sans-serif;margin:2rem auto;max-width:72rem;padding:0 1rem;color:#1c2733}"
    "table{border-collapse:collapse;width:100%;margin:.5rem 0 2rem}th,td{text-align:left;padding:.3rem .6rem;"
    "border-bottom:1px solid #dde3ea;vertical-align:top}th{color:#5b6b7c;font-weight:600}code{font-size:13px}"
)


class Pages:
    """Renders pages from the store."""

    def __init__(self, *, store: Store) -> None:
        self._store = store

    def overview(self, path: str) -> str:
        """All objects, or the one object whose id comes first in `path`."""
        with self._store.read() as tx:
            all_projects = list(tx.scan(projects.KIND))
            all_tasks = list(tx.scan(tasks.KIND))
            all_models = list(tx.scan(models.KIND))
        names = {doc["id"]: doc["name"] for doc in all_projects}
        segments = set(path.split("/"))
        focus = [doc for doc in [*all_tasks, *all_models] if doc["id"] in segments]
        if not focus and segments & names.keys():
            all_tasks = [doc for doc in all_tasks if doc.get("project") in segments]
            all_models = [doc for doc in all_models if doc.get("project") in segments]
        if focus:
            all_tasks = [doc for doc in all_tasks if doc in focus]
            all_models = [doc for doc in all_models if doc in focus]
        services = [doc for doc in all_tasks if SERVING_TAG in doc.get("system_tags", ())]
        others = [doc for doc in all_tasks if doc not in services]
        body = [
            "<h1>triton-gateway control plane</h1>",
            "<p>A ClearML-compatible registry. Read-only view; change it with <code>clearml-serving</code> or the SDK."
            ' <a href="/">All objects</a></p>',
            _table(
                "Serving services",
                ("name", "id", "project", "status", "sections", "last change"),
                [
                    (
                        doc["name"],
                        _code(doc["id"]),
                        names.get(doc.get("project"), ""),
                        _status(doc),
                        ", ".join(sorted(_SECTIONS & (doc.get("configuration") or {}).keys())),
                        _when(doc),
                    )
                    for doc in services
                ],
            ),
            _table(
                "Models",
                ("name", "id", "project", "published", "framework", "tags", "created"),
                [
                    (
                        doc["name"],
                        _code(doc["id"]),
                        names.get(doc.get("project"), ""),
                        "yes" if doc.get("ready") else "no",
                        doc.get("framework") or "",
                        ", ".join([*doc.get("tags", ()), *doc.get("system_tags", ())]),
                        str(doc.get("created"))[:19],
                    )
                    for doc in reversed(all_models)
                ],
            ),
            _table(
                "Tasks",
                ("name", "id", "project", "type", "status", "last change"),
                [
                    (
                        doc["name"],
                        _code(doc["id"]),
                        names.get(doc.get("project"), ""),
                        doc.get("type", ""),
                        _status(doc),
                        _when(doc),
                    )
                    for doc in reversed(others)
                ],
            ),
            _table("Projects", ("name", "id"), [(doc["name"], _code(doc["id"])) for doc in all_projects]),
        ]
        return (
            '<!doctype html><html lang="en"><head><meta charset="utf-8"><title>triton-gateway control plane</title>'
            f"<style>{_STYLE}</style></head><body>{''.join(body)}</body></html>"
        )


class _Html(str):
    """Text that is already markup."""

    __slots__ = ()


def _table(title: str, columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    head = "".join(f"<th>{escape(column)}</th>" for column in columns)
    lines = "".join(
        "<tr>" + "".join(f"<td>{cell if isinstance(cell, _Html) else escape(str(cell))}</td>" for cell in row) + "</tr>"
        for row in rows[:LIMIT]
    )
    more = f"<p>… and {len(rows) - LIMIT} more</p>" if len(rows) > LIMIT else ""
    empty = "" if rows else f'<tr><td colspan="{len(columns)}">none</td></tr>'
    return f"<h2>{escape(title)} ({len(rows)})</h2><table><tr>{head}</tr>{lines}{empty}</table>{more}"


def _code(text: str) -> _Html:
    return _Html(f'<a href="/{escape(text)}"><code>{escape(text)}</code></a>')


def _status(doc: JsonObject) -> str:
    message = doc.get("status_message") or ""
    return f"{doc['status']} ({message})" if message else str(doc["status"])


def _when(doc: JsonObject) -> str:
    return str(doc.get("last_change"))[:19]

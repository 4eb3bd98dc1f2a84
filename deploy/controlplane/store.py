"""The one database: SQLite in WAL mode, one transaction at a time, documents as JSON.

Each `with store.transaction()` survives a SIGKILL as a whole or not at all. It interprets nothing of a document except
its id.
"""

import json
import sqlite3
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import orjson

from deploy.controlplane.envelope import JsonObject

SCHEMA = """
    CREATE TABLE IF NOT EXISTS documents (
        seq INTEGER PRIMARY KEY AUTOINCREMENT, kind TEXT NOT NULL, id TEXT NOT NULL, doc TEXT NOT NULL,
        UNIQUE (kind, id)
    );
"""


class Transaction:
    """What one call reads and writes. Others see its changes only after it ends."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection

    def get(self, kind: str, document_id: str) -> JsonObject | None:
        """One document, None if there is none."""
        sql = "SELECT doc FROM documents WHERE kind = ? AND id = ?"
        found = self._connection.execute(sql, (kind, str(document_id))).fetchone()
        return loads(found[0]) if found else None

    def scan(self, kind: str) -> Iterator[JsonObject]:
        """All documents of a kind, in insertion order."""
        for row in self._connection.execute("SELECT doc FROM documents WHERE kind = ? ORDER BY seq", (kind,)):
            yield loads(row[0])

    def put(self, kind: str, doc: JsonObject) -> None:
        """Insert or replace the document with `doc["id"]`; its place in the insertion order stays."""
        self._connection.execute(
            "INSERT INTO documents (kind, id, doc) VALUES (?, ?, ?)"
            " ON CONFLICT (kind, id) DO UPDATE SET doc = excluded.doc",
            (kind, doc["id"], dumps(doc)),
        )

    def delete(self, kind: str, document_id: str) -> None:
        """Remove one document. A missing one is no error."""
        self._connection.execute("DELETE FROM documents WHERE kind = ? AND id = ?", (kind, document_id))


class Store:
    """Opens and serves one database file. Safe across threads, which take turns.

    Args:
        path: the database file; its directory exists.

    Raises:
        sqlite3.DatabaseError: the file is not a database of ours.
    """

    def __init__(self, path: Path) -> None:
        self._turn = threading.Lock()
        self._connection = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
        try:
            self._connection.execute("PRAGMA journal_mode = WAL")
            # FULL: a commit is on disk before the client gets its answer, even if the machine crashes
            self._connection.execute("PRAGMA synchronous = FULL")
            self._connection.executescript(SCHEMA)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Close the file. SQLite merges the WAL back into it."""
        with self._turn:
            self._connection.close()

    @contextmanager
    def transaction(self) -> Iterator[Transaction]:
        """One transaction: committed and synced when the block ends, rolled back when it raises."""
        with self._turn:
            self._connection.execute("BEGIN")
            try:
                yield Transaction(self._connection)
                self._connection.execute("COMMIT")
            except BaseException:
                if self._connection.in_transaction:
                    self._connection.execute("ROLLBACK")
                raise


def dumps(value: Any) -> str:
    """JSON text; integers beyond 64 bits are kept (a client may send any number)."""
    try:
        return orjson.dumps(value).decode()
    except TypeError:
        return json.dumps(value)


def loads(text: str | bytes) -> Any:
    """The value of JSON text; accepts NaN and Infinity, which Python clients send, and integers of any size.

    Raises:
        ValueError: not JSON, or with half of a surrogate pair, which is no text that could be stored.
        RecursionError: nested too deeply.
    """
    try:
        return orjson.loads(text)
    except orjson.JSONDecodeError:
        value = json.loads(text)
        json.dumps(value, ensure_ascii=False).encode()
        return value

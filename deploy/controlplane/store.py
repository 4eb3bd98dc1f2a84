"""The one database: SQLite in WAL mode, one writer at a time, documents as JSON.

Each `with store.write()` is one transaction, which survives a SIGKILL as a whole or not at all. It interprets nothing
of a document except its id.
"""

import json
import math
import sqlite3
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import orjson

from deploy.controlplane.envelope import JsonObject, StoreBusy

SCHEMA = """
    CREATE TABLE IF NOT EXISTS documents (
        seq INTEGER PRIMARY KEY AUTOINCREMENT, kind TEXT NOT NULL, id TEXT NOT NULL, doc TEXT NOT NULL,
        UNIQUE (kind, id)
    );
    CREATE TABLE IF NOT EXISTS events (
        seq INTEGER PRIMARY KEY AUTOINCREMENT, owner TEXT NOT NULL, type TEXT NOT NULL, metric TEXT NOT NULL,
        variant TEXT NOT NULL, iter INTEGER NOT NULL, timestamp INTEGER NOT NULL, doc TEXT NOT NULL
    );
    CREATE INDEX IF NOT EXISTS events_by_owner ON events (owner, type, timestamp);
"""


class Transaction:
    """What one call reads and writes. Others see its changes only after it ends."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection

    def get(self, kind: str, document_id: str) -> JsonObject | None:
        """One document, None if there is none."""
        found = self.rows("SELECT doc FROM documents WHERE kind = ? AND id = ?", (kind, document_id))
        return loads(found[0][0]) if found else None

    def scan(self, kind: str, ids: Sequence[str] | None = None) -> Iterator[JsonObject]:
        """Documents in insertion order, all of a kind or those with one of `ids`."""
        sql, values = "SELECT doc FROM documents WHERE kind = ?", [kind]
        if ids is not None:
            # json_each instead of a list of placeholders, whose number SQLite limits
            sql += " AND id IN (SELECT value FROM json_each(?))"
            values.append(json.dumps(list(ids)))
        for row in self._connection.execute(f"{sql} ORDER BY seq", values):
            yield loads(row[0])

    def rows(self, sql: str, values: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        """All rows of a query."""
        return list(self._connection.execute(sql, values))

    def put(self, kind: str, doc: JsonObject) -> None:
        """Insert or replace the document with `doc["id"]`; its place in the insertion order stays."""
        self._connection.execute(
            "INSERT INTO documents (kind, id, doc) VALUES (?, ?, ?)"
            " ON CONFLICT (kind, id) DO UPDATE SET doc = excluded.doc",
            (kind, doc["id"], dumps(doc)),
        )

    def delete(self, kind: str, document_id: str) -> None:
        """Remove one document and its events. A missing one is no error."""
        self._connection.execute("DELETE FROM documents WHERE kind = ? AND id = ?", (kind, document_id))
        self._connection.execute("DELETE FROM events WHERE owner = ?", (document_id,))

    def execute_many(self, sql: str, rows: Sequence[Sequence[Any]]) -> None:
        """Run one statement for each row."""
        self._connection.executemany(sql, rows)


class Store:
    """Opens and serves one database file. Safe across threads.

    Args:
        path: the database file; its directory exists.
        busy_timeout_s: how long a writer waits for its turn before `StoreBusy`.

    Raises:
        sqlite3.DatabaseError: the file is not a database of ours.
    """

    def __init__(self, path: Path, *, busy_timeout_s: float = 10.0) -> None:
        self._path = path
        self._busy_timeout_s = busy_timeout_s
        self._write_lock = threading.Lock()
        self._connections_lock = threading.Lock()
        self._connections: list[sqlite3.Connection] = []
        self._local = threading.local()
        try:
            self._writer = self._connect()
            with _translated():
                self._writer.executescript(SCHEMA)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Close all connections. SQLite merges the WAL back into the file."""
        with self._write_lock, self._connections_lock:
            for connection in self._connections:
                connection.close()
            self._connections.clear()

    @contextmanager
    def read(self) -> Iterator[Transaction]:
        """A consistent view that refuses writes; never waits for a writer.

        Raises:
            StoreBusy: SQLite could not give the view.
        """
        with _translated():
            connection: sqlite3.Connection | None = getattr(self._local, "connection", None)
            if connection is None:
                connection = self._local.connection = self._connect()
                connection.execute("PRAGMA query_only = ON")
            connection.execute("BEGIN")
            try:
                yield Transaction(connection)
            finally:
                connection.execute("ROLLBACK")

    @contextmanager
    def write(self) -> Iterator[Transaction]:
        """One transaction of the one writer: committed and synced when the block ends, rolled back when it raises.

        Raises:
            StoreBusy: the turn did not come within `busy_timeout_s`.
        """
        if not self._write_lock.acquire(timeout=self._busy_timeout_s):
            raise StoreBusy("another write is in progress")
        try:
            with _translated():
                self._writer.execute("BEGIN IMMEDIATE")
                try:
                    yield Transaction(self._writer)
                    self._writer.execute("COMMIT")
                except BaseException:
                    if self._writer.in_transaction:
                        self._writer.execute("ROLLBACK")
                    raise
        finally:
            self._write_lock.release()

    def _connect(self) -> sqlite3.Connection:
        connection = sqlite3.connect(
            self._path, timeout=self._busy_timeout_s, isolation_level=None, check_same_thread=False
        )
        with self._connections_lock:
            self._connections.append(connection)
        connection.execute("PRAGMA journal_mode = WAL")
        # FULL: a commit is on disk before the client gets its answer, even if the machine crashes
        connection.execute("PRAGMA synchronous = FULL")
        return connection


@contextmanager
def _translated() -> Iterator[None]:
    try:
        yield
    except sqlite3.OperationalError as exc:
        if any(word in str(exc) for word in ("locked", "busy")):
            raise StoreBusy(str(exc)) from exc
        raise


def dumps(value: Any) -> str:
    """JSON text; integers beyond 64 bits are kept (a client may send any number)."""
    try:
        return orjson.dumps(value).decode()
    except TypeError:
        return json.dumps(_without_nan(value))


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


def _without_nan(value: Any) -> Any:
    """NaN and Infinity as null: SQLite reads the documents too, and JSON has neither."""
    if isinstance(value, dict):
        return {key: _without_nan(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_without_nan(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value

"""Posts records as CloudEvents 1.0 over HTTP, in JSON: in batches, or singly if the receiver accepts no batches.

The payload log's own thread calls it and may wait here. Records that cannot be delivered in three attempts are lost.
"""

from __future__ import annotations

import contextlib
import secrets
import threading
from collections.abc import Sequence
from typing import Final
from urllib.parse import urlsplit, urlunsplit

import requests

from gateway.payloads.sink import REFUSED, UNREACHABLE, WRITTEN, Record, dumps

TYPE: Final = "triton-gateway.inference.answered"
_BATCH: Final = "application/cloudevents-batch+json"
_SINGLE: Final = "application/cloudevents+json"
_TIMEOUT_S: Final = (3.0, 10.0)
"""Timeouts for connecting, and between two bytes of the answer."""
_PAUSES_S: Final = (0.5, 2.0)
_TRY_AGAIN: Final = frozenset({408, 425, 429})


class Address:
    """Posts to ``url``, at most ``max_records`` events per request; ``source`` names the gateway."""

    def __init__(
        self, url: str, *, max_records: int, source: str, pauses: Sequence[float] = _PAUSES_S,
        session: requests.Session | None = None,
    ) -> None:  # fmt: skip
        parts = urlsplit(url)
        self.destination = urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2], query=""))
        self.max_records = max_records
        self._url = url
        self._source = source
        self._pauses = tuple(pauses)
        self._session = session or requests.Session()
        self._stopped = threading.Event()

    def encode(self, record: Record) -> bytes:
        """See ``Sink.encode``."""
        return dumps({
            "specversion": "1.0", "type": TYPE, "source": self._source, "id": secrets.token_hex(16),
            "subject": record["url"], "time": record["time"], "datacontenttype": "application/json",
            **{name: record[field] for name, field in (("requestid", "request_id"), ("traceid", "trace_id"))
               if record.get(field)},
            "endpoint": record["endpoint"], "endpointversion": record["version"],
            "data": record,
        })  # fmt: skip

    def write(self, encoded: Sequence[bytes]) -> tuple[str, str]:
        """See ``Sink.write``."""
        body, kind = (encoded[0], _SINGLE) if self.max_records == 1 else (b"[" + b",".join(encoded) + b"]", _BATCH)
        outcome = reason = ""
        for pause in (*self._pauses, None):
            outcome, reason, is_final = self._post(body, kind)
            if is_final or pause is None or self._stopped.wait(pause):
                break
        return outcome, reason

    def idle(self) -> None:
        """See ``Sink.idle``; does nothing."""

    def stop(self) -> None:
        """See ``Sink.stop``."""
        self._stopped.set()

    def close(self) -> None:
        """See ``Sink.close``."""
        with contextlib.suppress(requests.RequestException):
            self._session.close()

    def _post(self, body: bytes, kind: str) -> tuple[str, str, bool]:
        """Return the outcome, the reason, and whether a further attempt would be useless."""
        try:
            # Redirects are not followed: the library would turn the POST into a GET.
            reply = self._session.post(
                self._url, data=body, headers={"content-type": kind}, timeout=_TIMEOUT_S, allow_redirects=False
            )
        except requests.RequestException as error:
            return UNREACHABLE, f"{self.destination} cannot be reached: {type(error).__name__}", False
        status = reply.status_code
        if 200 <= status < 300:
            return WRITTEN, "", True
        reason = f"{self.destination} answered {status}"
        if status >= 500 or status in _TRY_AGAIN:
            return UNREACHABLE, reason, False
        return REFUSED, reason, True

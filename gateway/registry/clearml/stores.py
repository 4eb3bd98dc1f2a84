"""Files in stores, for reading: over HTTP and on this disk, also in parts; in S3, Google's and Azure's storage whole.

Answers of servers are translated here: a refusal (missing file, wrong credentials) is ``RegistryRefused``; a temporary
failure (unreachable, slow, cut off, replaced during reading) is ``RegistryUnavailable``. Each wait for further bytes
over HTTP lasts at most ``session.READ_S``. The clouds are left to the SDK, with its credentials, from ``clearml.conf``
or its variables, and its limits. ``files`` calls this.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final
from urllib.parse import unquote, urlsplit

import requests

from gateway.errors import RegistryRefused, RegistryUnavailable
from gateway.registry.clearml.session import CONNECT_S, READ_S, reason_of
from gateway.registry.port import Parts

CLOUDS: Final = ("s3", "gs", "azure")
CHUNK: Final = 1 << 20
_TOTAL: Final = re.compile(r"bytes \d+-\d+/(\d+)")


def on_disk(address: str) -> Parts:
    """Return a file on this disk, for reading in parts."""
    path = Path(unquote(urlsplit(address).path))
    try:
        is_there = path.is_file()
    except OSError:  # for instance a name that is too long
        is_there = False
    if not is_there:
        raise RegistryRefused(
            f"{address} is not a file on this machine",
            hint="upload the model to the file server (clearml-serving model upload --path …)",
        )

    def read(start: int, count: int) -> Iterator[bytes]:
        with path.open("rb") as file:
            file.seek(start)
            while count > 0 and (chunk := file.read(min(CHUNK, count))):
                count -= len(chunk)
                yield chunk

    return Parts(path.stat().st_size, read)


class OverHttp:
    """A file behind a URL, requested with ``headers``."""

    def __init__(self, address: str, url: str, headers: Mapping[str, str]) -> None:
        self._address = address
        self._url = url
        # A compressed answer would have another length than the file.
        self._headers = {**headers, "Accept-Encoding": "identity"}

    def whole(self) -> tuple[int | None, Iterator[bytes]]:
        """Return the size in bytes (None if unknown) and the content; read it to its end, or ``close`` it."""
        reply = self._get({})
        length = reply.headers.get("Content-Length", "")
        is_plain = length.isdecimal() and "Content-Encoding" not in reply.headers
        return int(length) if is_plain else None, self._content(reply)

    def parts(self) -> Parts | None:
        """Return the file for reading in parts; None if its server cannot do that."""
        with self._get({"Range": "bytes=0-0"}, also=(requests.codes.requested_range_not_satisfiable,)) as reply:
            total = _TOTAL.fullmatch(reply.headers.get("Content-Range", ""))
            if reply.status_code != requests.codes.partial or total is None or "Content-Encoding" in reply.headers:
                return None
            tag = reply.headers.get("ETag", "")
        same = {"If-Range": tag} if tag and not tag.startswith("W/") else {}

        def read(start: int, count: int) -> Iterator[bytes]:
            reply = self._get({"Range": f"bytes={start}-{start + count - 1}", **same})
            if reply.status_code != requests.codes.partial:
                reply.close()
                raise RegistryUnavailable(f"{self._address} was replaced while it was read")
            yield from self._content(reply)

        return Parts(int(total[1]), read)

    def _get(self, more: Mapping[str, str], also: tuple[int, ...] = ()) -> requests.Response:
        try:
            reply = requests.get(self._url, headers={**self._headers, **more}, stream=True, timeout=(CONNECT_S, READ_S))
        except requests.RequestException as error:
            raise _cut(self._address, error) from error
        if reply.status_code in (requests.codes.ok, requests.codes.partial, *also):
            return reply
        reply.close()
        answer = f"the file store answers {reply.status_code} for {self._address}"
        if reply.status_code in (401, 403, 404, 410):
            raise RegistryRefused(answer)
        raise RegistryUnavailable(answer)

    def _content(self, reply: requests.Response) -> Iterator[bytes]:
        try:
            with reply:
                yield from reply.iter_content(CHUNK)
        except requests.RequestException as error:
            raise _cut(self._address, error) from error


def from_cloud(address: str, target: Path) -> None:
    """Download the object at an address of ``CLOUDS`` to ``target``. Why that fails, the SDK says in its log only."""
    from clearml.storage.helper import StorageHelper

    failure: Exception | None = None
    try:
        helper = StorageHelper.get(address)
        if helper is not None and helper.download_to_file(
            address, str(target), overwrite_existing=True, skip_zero_size_check=True
        ):
            return
    except Exception as error:  # noqa: BLE001 - the SDK's, of any type
        failure = error
    extra = urlsplit(address).scheme  # the extras are called as the schemes are
    raise RegistryUnavailable(
        f"the clearml SDK cannot download {address}{f': {reason_of(failure)}' if failure else ''}",
        hint="its own line in this log says why; check the keys of this store in clearml.conf or in the SDK's "
        f'variables, and that its library is there: pip install ".[{extra}]", or --build-arg EXTRAS={extra}',
    ) from failure


def _cut(address: str, error: Exception) -> RegistryUnavailable:
    return RegistryUnavailable(f"downloading {address} failed: {reason_of(error)}")

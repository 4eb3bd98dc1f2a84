"""Reads the file at a model's or an artifact's address, in whichever store it is.

http(s) is fetched directly with ClearML's token, ``file`` is read from disk, and s3, gs and azure are read with the
SDK's credentials.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Final
from urllib.parse import quote, unquote, urlsplit

import requests

from gateway.errors import RegistryRefused, RegistryUnavailable
from gateway.file_names import file_name
from gateway.registry.clearml import stores
from gateway.registry.clearml.session import Api
from gateway.registry.port import Parts

_log = logging.getLogger("triton_gateway.registry")

_SIZE_S: Final = 2.0
"""Deadline of a question for a file's size."""
_QUIET_S: Final = 2.0
"""Downloads that take less time are not logged."""
_APART_S: Final = 10.0
"""Time between two log lines of a download."""


class Files:
    """Downloads files; ``rewrite`` maps address prefixes as written by uploaders to prefixes reachable from here."""

    def __init__(self, api: Api, rewrite: Mapping[str, str]) -> None:
        self._api = api
        self._rewrites = dict(rewrite)

    def download(self, uri: str, folder: Path) -> Path:
        """See ``Registry.download``."""
        address = self._address(uri)
        target = folder / file_name(unquote(urlsplit(address).path.rsplit("/", 1)[-1]))
        expected, chunks = self._whole(address)
        progress = Progress(target.name, expected)
        with target.open("wb") as out:
            for chunk in chunks:
                out.write(chunk)
                progress.received(out.tell())
        size = target.stat().st_size
        if expected is not None and size != expected:
            raise RegistryUnavailable(f"downloading {address} stopped after {size} of {expected} bytes")
        progress.ended()
        return target

    def _whole(self, address: str) -> tuple[int | None, Iterator[bytes]]:
        if _is_web(address):
            return stores.OverHttp(address, *self._request(address)).whole()
        stored = stores.opened(address)
        return stored.size, stored.read(0, stored.size)

    def parts(self, uri: str) -> Parts | None:
        """See ``Registry.parts``."""
        address = self._address(uri)
        if _is_web(address):
            return stores.OverHttp(address, *self._request(address)).parts()
        return stores.opened(address)

    def size(self, uri: str) -> int | None:
        """Return the size in bytes of the file at ``uri``; 0 if it does not exist, None if unknown within seconds."""
        try:
            address = self._address(uri)
        except RegistryRefused:
            return 0
        if not _is_web(address):
            return None
        url, headers = self._request(address)
        try:
            reply = requests.head(url, headers=headers, timeout=_SIZE_S, allow_redirects=True)
        except requests.RequestException:
            return None
        if reply.status_code in (404, 410):
            return 0
        length = reply.headers.get("Content-Length", "") if reply.status_code == requests.codes.ok else ""
        return int(length) if length.isdecimal() and "Content-Encoding" not in reply.headers else None

    def _address(self, uri: str) -> str:
        """Return the address that can be reached from here. Raises ``RegistryRefused`` if ``uri`` is no address."""
        prefix = next((prefix for prefix in self._rewrites if uri.startswith(prefix)), "")
        address = self._rewrites[prefix] + uri[len(prefix) :] if prefix else uri
        try:
            urlsplit(address)
            address.encode()
        except ValueError as error:  # brackets without a host between them, or what is not Unicode
            raise RegistryRefused(
                f"{uri} is not an address: {error}",
                hint="upload the model again, or correct its address",
            ) from error
        return address

    def _request(self, address: str) -> tuple[str, dict[str, str]]:
        """Return the url and the headers for fetching an address."""
        session = self._api.session
        headers: dict[str, str] = {}
        files_host = str(session.get_files_server_host() or "").rstrip("/")
        if address.startswith((files_host + "/", session.host.rstrip("/") + "/")):
            headers = session.add_auth_headers(headers)
        # The SDK stores '#' and '?' unescaped in addresses of its file server, where they belong to the file name.
        raw = (
            address.replace("#", "%23").replace("?", "%3F")
            if files_host and address.startswith(files_host)
            else address
        )
        return quote(raw, safe="/:%?#=&+,;@!$'()*[]~"), headers


def _is_web(address: str) -> bool:
    return urlsplit(address).scheme in ("http", "https")


class Progress:
    """Logs the progress of a download that takes longer than two seconds. ``total`` is in bytes, None if unknown."""

    def __init__(self, name: str, total: int | None, clock: Callable[[], float] = time.monotonic) -> None:
        self._name = name
        self._total = total
        self._clock = clock
        self._began = clock()
        self._due = self._began + _QUIET_S
        self._done = 0
        self._is_logged = False

    def received(self, done: int) -> None:
        """Set the number of bytes received."""
        self._done = done
        now = self._clock()
        if now < self._due:
            return
        self._due, self._is_logged = now + _APART_S, True
        if self._total:
            _log.info(
                "downloading %s: %.0f of %.0f MB (%.0f %%)",
                self._name, done / 1e6, self._total / 1e6, 100 * done / self._total,
            )  # fmt: skip
        else:
            _log.info("downloading %s: %.0f MB", self._name, done / 1e6)

    def ended(self) -> None:
        """Log the end of the download if its progress was logged."""
        if self._is_logged:
            _log.info("downloaded %s: %.0f MB in %.0f s", self._name, self._done / 1e6, self._clock() - self._began)

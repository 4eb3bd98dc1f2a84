"""Reads the file at a model's or an artifact's address, in whichever store it is.

http(s) is fetched directly with ClearML's token, ``file`` is read from disk, and s3, gs and azure are left to the SDK.
Progress is read from the disk, as the libraries of the clouds do not all tell it.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final
from urllib.parse import quote, unquote, urlsplit

from gateway.errors import RegistryRefused, RegistryUnavailable
from gateway.file_names import file_name
from gateway.registry.clearml import stores
from gateway.registry.clearml.session import Api
from gateway.registry.port import Parts

_log = logging.getLogger("triton_gateway.registry")

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
        if urlsplit(address).scheme in stores.CLOUDS:
            with _logged(folder, target.name):
                stores.from_cloud(address, target)
            return target
        expected, chunks = self._whole(address)
        with _logged(folder, target.name, expected), target.open("wb") as out:
            for chunk in chunks:
                out.write(chunk)
        size = target.stat().st_size
        if expected is not None and size != expected:
            raise RegistryUnavailable(f"downloading {address} stopped after {size} of {expected} bytes")
        return target

    def _whole(self, address: str) -> tuple[int | None, Iterator[bytes]]:
        if _is_web(address):
            return stores.OverHttp(address, *self._request(address)).whole()
        stored = stores.on_disk(address)
        return stored.size, stored.read(0, stored.size)

    def parts(self, uri: str) -> Parts | None:
        """See ``Registry.parts``."""
        address = self._address(uri)
        if _is_web(address):
            return stores.OverHttp(address, *self._request(address)).parts()
        return None if urlsplit(address).scheme in stores.CLOUDS else stores.on_disk(address)

    def is_there(self, uri: str) -> bool:
        """Whether the file at ``uri`` exists; assumed if its store does not tell."""
        try:
            self.parts(uri)
        except RegistryRefused:
            return False
        except RegistryUnavailable:
            return True
        return True

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
        if urlsplit(address).scheme not in ("", "file", "http", "https", *stores.CLOUDS):
            raise RegistryRefused(
                f"{address} is not in a store that can be read", hint="upload the model to http(s), s3, gs or azure"
            )
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


@contextlib.contextmanager
def _logged(folder: Path, name: str, total: int | None = None) -> Iterator[None]:
    """Log the progress of a download into ``folder`` that takes longer than two seconds."""
    began, ended = time.monotonic(), threading.Event()

    def arrived() -> float:
        with contextlib.suppress(OSError):  # renamed meanwhile
            return sum(path.stat().st_size for path in folder.iterdir()) / 1e6
        return 0.0

    def look() -> None:
        pause = _QUIET_S
        while not ended.wait(pause):
            pause, done = _APART_S, arrived()
            of = f" of {total / 1e6:.0f} MB ({100e6 * done / total:.0f} %)" if total else " MB"
            _log.info("downloading %s: %.0f%s", name, done, of)

    watcher = threading.Thread(target=look, name="download-progress", daemon=True)
    watcher.start()
    try:
        yield
    finally:
        ended.set()
    if (took := time.monotonic() - began) > _QUIET_S:
        _log.info("downloaded %s: %.0f MB in %.0f s", name, arrived(), took)

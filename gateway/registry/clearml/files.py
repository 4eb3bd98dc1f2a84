"""Reads the file at a model's or an artifact's address, in whichever store it is.

http(s) is fetched directly with ClearML's token, also in parts, ``file`` is read from disk, and s3, gs and azure are
left to the SDK, with its credentials, from ``clearml.conf`` or its variables, and its limits. A refusal (missing file,
wrong credentials) is ``RegistryRefused``; a temporary failure (unreachable, slow, cut off, replaced during reading) is
``RegistryUnavailable``. Each wait for further bytes over HTTP lasts at most ``session.READ_S``. Progress is read from
the disk, as the libraries of the clouds do not all tell it.
"""

from __future__ import annotations

import contextlib
import logging
import re
import threading
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final
from urllib.parse import quote, unquote, urlsplit

import requests

from gateway.errors import RegistryRefused, RegistryUnavailable
from gateway.file_names import file_name
from gateway.registry.clearml.session import CONNECT_S, READ_S, Api, reason_of
from gateway.registry.port import Parts

_log = logging.getLogger("triton_gateway.registry")

_CLOUDS: Final = ("s3", "gs", "azure")
_CHUNK: Final = 1 << 20
_TOTAL: Final = re.compile(r"bytes \d+-\d+/(\d+)")
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
        if urlsplit(address).scheme in _CLOUDS:
            with _logged(folder, target.name):
                _from_cloud(address, target)
            return target
        if _is_web(address):
            expected, chunks = self._web(address).whole()
        else:
            stored = on_disk(address)
            expected, chunks = stored.size, stored.read(0, stored.size)
        with _logged(folder, target.name, expected), target.open("wb") as out:
            for chunk in chunks:
                out.write(chunk)
        size = target.stat().st_size
        if expected is not None and size != expected:
            raise RegistryUnavailable(f"downloading {address} stopped after {size} of {expected} bytes")
        return target

    def parts(self, uri: str) -> Parts | None:
        """See ``Registry.parts``."""
        address = self._address(uri)
        if _is_web(address):
            return self._web(address).parts()
        return None if urlsplit(address).scheme in _CLOUDS else on_disk(address)

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
        if urlsplit(address).scheme not in ("", "file", "http", "https", *_CLOUDS):
            raise RegistryRefused(
                f"{address} is not in a store that can be read", hint="upload the model to http(s), s3, gs or azure"
            )
        return address

    def _web(self, address: str) -> _OverHttp:
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
        return _OverHttp(address, quote(raw, safe="/:%?#=&+,;@!$'()*[]~"), headers)


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
            while count > 0 and (chunk := file.read(min(_CHUNK, count))):
                count -= len(chunk)
                yield chunk

    return Parts(path.stat().st_size, read)


class _OverHttp:
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
                yield from reply.iter_content(_CHUNK)
        except requests.RequestException as error:
            raise _cut(self._address, error) from error


def _from_cloud(address: str, target: Path) -> None:
    """Download the object at an address of ``_CLOUDS`` to ``target``. Why that fails, the SDK says in its log only."""
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

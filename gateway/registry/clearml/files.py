"""Files of the registry: what lies behind a model's or an artifact's address, whatever store that is.

http(s) is fetched directly with ClearML's token, ``file`` is copied, everything else (s3, gs, azure) goes through the
SDK's storage layer with the credentials of ``clearml.conf``.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Final
from urllib.parse import quote, unquote, urlsplit

import requests

from gateway.errors import RegistryRefused, RegistryUnavailable
from gateway.registry.clearml.session import CONNECT_S, READ_S, Api, reason_of

_CHUNK: Final = 1 << 20
_SIZE_S: Final = 2.0


class Files:
    """Downloads and sizes; ``rewrite`` maps address prefixes as uploaders wrote them to prefixes reachable here."""

    def __init__(self, api: Api, rewrite: Mapping[str, str]) -> None:
        self._api = api
        self._rewrites = dict(rewrite)

    def download(self, uri: str, folder: Path) -> Path:
        """Fetch ``uri`` into ``folder``; http(s) directly with ClearML's token, everything else through the SDK."""
        address = self._rewrite(uri)
        target = folder / (unquote(urlsplit(address).path.rsplit("/", 1)[-1]) or "file")
        scheme = urlsplit(address).scheme
        if scheme in ("http", "https"):
            self._fetch_http(address, target)
            return target
        if scheme in ("", "file"):
            source = Path(unquote(urlsplit(address).path))
            if not source.is_file():
                raise RegistryRefused(
                    f"{uri} is not a file on this machine",
                    hint="upload the model to the file server (clearml-serving model upload --path …)",
                )
            _copy(source, target)
            return target
        return self._fetch_storage(address, target)

    def size(self, uri: str) -> int | None:
        """Return how many bytes lie at ``uri``; 0 if nothing does, None if nobody can say it within seconds."""
        address = self._rewrite(uri)
        if urlsplit(address).scheme not in ("http", "https"):
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

    def _rewrite(self, uri: str) -> str:
        for prefix, replacement in self._rewrites.items():
            if uri.startswith(prefix):
                return replacement + uri[len(prefix) :]
        return uri

    def _request(self, address: str) -> tuple[str, dict[str, str]]:
        """Return the url to ask for a file's address, and the headers that this needs."""
        session = self._api.session
        headers: dict[str, str] = {}
        files_host = str(session.get_files_server_host() or "").rstrip("/")
        if address.startswith((files_host + "/", session.host.rstrip("/") + "/")):
            headers = session.add_auth_headers(headers)
        # '#' and '?' stay raw in addresses the SDK stores; both belong to the file name there.
        raw = (
            address.replace("#", "%23").replace("?", "%3F")
            if files_host and address.startswith(files_host)
            else address
        )
        return quote(raw, safe="/:%?#=&+,;@!$'()*[]~"), headers

    def _fetch_http(self, address: str, target: Path) -> None:
        url, headers = self._request(address)
        try:
            with requests.get(url, headers=headers, stream=True, timeout=(CONNECT_S, READ_S)) as reply:
                if reply.status_code in (401, 403, 404, 410):
                    raise RegistryRefused(f"the file store answers {reply.status_code} for {address}")
                if reply.status_code != requests.codes.ok:
                    raise RegistryUnavailable(f"the file store answers {reply.status_code} for {address}")
                expected = reply.headers.get("Content-Length")
                with target.open("wb") as out:
                    for chunk in reply.iter_content(_CHUNK):
                        out.write(chunk)
                    out.flush()
                    os.fsync(out.fileno())
        except requests.RequestException as error:
            raise RegistryUnavailable(f"downloading {address} failed: {reason_of(error)}") from error
        size = target.stat().st_size
        if expected is not None and "Content-Encoding" not in reply.headers and size != int(expected):
            raise RegistryUnavailable(f"downloading {address} stopped after {size} of {expected} bytes")

    def _fetch_storage(self, address: str, target: Path) -> Path:
        from clearml import StorageManager

        try:
            found = StorageManager.get_local_copy(remote_url=address, extract_archive=False, force_download=True)
        except Exception as error:
            raise RegistryUnavailable(f"downloading {address} failed: {reason_of(error)}") from error
        if not found:
            raise RegistryUnavailable(
                f"downloading {address} failed", hint="check the storage credentials in clearml.conf"
            )
        _copy(Path(found), target)
        return target


def _copy(source: Path, target: Path) -> None:
    with source.open("rb") as read, target.open("wb") as out:
        while chunk := read.read(_CHUNK):
            out.write(chunk)
        out.flush()
        os.fsync(out.fileno())

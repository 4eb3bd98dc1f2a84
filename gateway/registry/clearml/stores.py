"""Files in stores, for reading: over HTTP, on this disk, in S3, Google Cloud Storage or Azure.

Answers of stores are translated here: a refusal (missing file, wrong credentials) is ``RegistryRefused``; a temporary
failure (unreachable, slow, cut off, replaced during reading) is ``RegistryUnavailable``. Each wait for further bytes
lasts at most ``session.READ_S``. Credentials of object storage are the SDK's: from ``clearml.conf`` or its variables.
``files`` calls this.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final, NoReturn
from urllib.parse import unquote, urlsplit

import requests

from gateway.errors import GatewayError, RegistryRefused, RegistryUnavailable
from gateway.registry.clearml.session import CONNECT_S, READ_S, reason_of
from gateway.registry.port import Parts

CHUNK: Final = 1 << 20
_PIECE: Final = 8 << 20

_TOTAL: Final = re.compile(r"bytes \d+-\d+/(\d+)")
_REPLACED: Final = "was replaced while it was read"
_KEYS_HINT: Final = "check the keys of this store in clearml.conf, or in the variables that the clearml SDK reads"


def opened(address: str) -> Parts:
    """Return the file at an address that is not http(s), for reading in parts."""
    stores: dict[str, Callable[[str], Parts]] = {
        "": _on_disk, "file": _on_disk, "s3": _in_s3, "gs": _in_google, "azure": _in_azure,
    }  # fmt: skip
    scheme = urlsplit(address).scheme
    if scheme not in stores:
        raise RegistryRefused(
            f"{address} is not in a store that can be read", hint="upload the model to http(s), s3, gs or azure"
        )
    return stores[scheme](address)


def _on_disk(address: str) -> Parts:
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
                raise RegistryUnavailable(f"{self._address} {_REPLACED}")
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


def _in_s3(address: str) -> Parts:
    """Return an object in an S3-compatible store, with the SDK's endpoint and credentials for its address.

    The SDK's own download is not used, here and below: it cannot read parts, reports errors only in its log, tries an
    unreachable store for minutes, and caches.
    """
    helper = _helper(address)
    import boto3
    from botocore.config import Config
    from clearml.config import config

    options = helper._driver._get_boto_resource_kwargs_from_config(helper._conf)  # noqa: SLF001 - nothing public
    options["config"] = Config(
        connect_timeout=CONNECT_S,
        read_timeout=READ_S,
        retries={"total_max_attempts": 2},
        signature_version=config.get("aws.boto3.signature_version", None),
        s3=dict(config.get("aws.boto3.s3", None) or {}),
    )
    client = boto3.Session(profile_name=helper._conf.profile or None).client("s3", **options)  # noqa: SLF001
    bucket = helper._container.bucket.name  # noqa: SLF001
    named = {"Bucket": bucket, "Key": helper._normalize_object_name(address)}  # noqa: SLF001
    with _asking(address):
        found = client.head_object(**named)
    same = {"IfMatch": found["ETag"]} if found.get("ETag") else {}

    def read(start: int, count: int) -> Iterator[bytes]:
        wanted = f"bytes={start}-{start + count - 1}"
        with contextlib.closing(client.get_object(**named, Range=wanted, **same)["Body"]) as body:
            yield from body.iter_chunks(CHUNK)

    return Parts(int(found["ContentLength"]), _reading(address, read))


def _in_azure(address: str) -> Parts:
    """Return a blob in Azure, with the SDK's account and key for its address."""
    helper = _helper(address)
    from azure.core import MatchConditions

    container, name = helper._container, helper._normalize_object_name(address)  # noqa: SLF001 - nothing public
    blob = container.blob_service.get_blob_client(container=container.name, blob=name)
    limits = {"connection_timeout": CONNECT_S, "read_timeout": READ_S, "retry_total": 1}
    with _asking(address):
        found = blob.get_blob_properties(**limits)
    same = {"etag": found.etag, "match_condition": MatchConditions.IfNotModified}
    return Parts(
        int(found.size),
        _reading(address, lambda start, count: blob.download_blob(start, count, **same, **limits).chunks()),
    )


def _in_google(address: str) -> Parts:
    """Return an object in Google Cloud Storage, with the SDK's credentials for its address."""
    helper = _helper(address)
    blob = helper._container.bucket.blob(helper._normalize_object_name(address))  # noqa: SLF001 - nothing public
    limits: dict[str, Any] = {"timeout": (CONNECT_S, READ_S), "retry": None}
    with _asking(address):
        blob.reload(**limits)

    def read(start: int, count: int) -> Iterator[bytes]:
        for at in range(start, start + count, _PIECE):
            end = min(at + _PIECE, start + count) - 1  # inclusive
            yield blob.download_as_bytes(
                start=at, end=end, if_generation_match=blob.generation, checksum=None, **limits
            )

    return Parts(int(blob.size), _reading(address, read))


def _reading(address: str, read: Callable[[int, int], Iterator[bytes]]) -> Callable[[int, int], Iterator[bytes]]:
    """Return ``read`` of a cloud's library with its exceptions translated."""

    def translated(start: int, count: int) -> Iterator[bytes]:
        with _asking(address):
            if count:
                yield from read(start, count)

    return translated


_REFUSED_KEYS: Final = (
    "DefaultCredentialsError", "RefreshError", "InvalidValue", "MalformedError",
    "InvalidOperation",  # a 401 without credentials, which cannot be renewed
    "NoCredentialsError", "PartialCredentialsError", "ProfileNotFound",
)  # fmt: skip
"""Google's and boto's exceptions that say only that the credentials are missing, malformed or refused."""


@contextlib.contextmanager
def _asking(address: str) -> Iterator[None]:
    """Translate the exceptions of the cloud libraries, of which there are dozens of types."""
    try:
        yield
    except Exception as error:
        answer = getattr(error, "response", None)
        status = (
            answer["ResponseMetadata"]["HTTPStatusCode"] if isinstance(answer, dict)  # boto's
            else getattr(error, "status_code", None) or getattr(error, "code", None)
        )  # fmt: skip
        if isinstance(status, int):
            raise _answered(address, status, reason_of(error)) from error
        if type(error).__name__ in _REFUSED_KEYS:
            raise RegistryRefused(f"{address}: {reason_of(error)}", hint=_KEYS_HINT) from error
        raise _cut(address, error) from error


def _answered(address: str, status: int, said: str) -> GatewayError:
    """Return the error for a store's answer."""
    if status == requests.codes.precondition_failed:
        return RegistryUnavailable(f"{address} {_REPLACED}")
    reason = f"the store answers {status} {said} for {address}"
    if status in (400, 401, 403):
        return RegistryRefused(reason, hint=_KEYS_HINT)
    return RegistryRefused(reason) if status in (404, 410) else RegistryUnavailable(reason)


def _helper(address: str) -> Any:
    """Return the SDK's driver for an address. The SDK's own ``get`` would return None and log the reason."""
    from clearml.storage.helper import StorageHelper

    try:
        url = StorageHelper._canonize_url(address)  # noqa: SLF001 - what its `get` does
        return StorageHelper(base_url=StorageHelper._resolve_base_url(url), url=url)  # noqa: SLF001
    except Exception as error:  # noqa: BLE001 - the SDK's, of any type
        _fail(address, reason_of(error))


def _fail(address: str, reason: str) -> NoReturn:
    if re.search(r"not found\. Please install|No module named", reason):
        extra = urlsplit(address).scheme  # the extras are called as the schemes are
        raise RegistryRefused(
            f"{address} cannot be read: the library for {extra}:// is not installed",
            hint=f'pip install ".[{extra}]", or build the image with --build-arg EXTRAS={extra}',
        )
    error: type[GatewayError] = RegistryUnavailable
    if re.search(r"(?i)missing key|missing account|configuration for|credential|forbidden|denied|\b40[134]\b", reason):
        error = RegistryRefused
    raise error(f"{address} cannot be read: {reason}", hint=_KEYS_HINT)


def _cut(address: str, error: Exception) -> RegistryUnavailable:
    return RegistryUnavailable(f"downloading {address} failed: {reason_of(error)}")

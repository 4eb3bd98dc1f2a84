"""Addresses of stored files, pure: from a URI to the path on our file server and back, with or without a version.

A path may be uploaded again (the stock tools name model files after the local file, so two models easily share one).
A *versioned* address, `<files>/.v/<12 hex of SHA-256>/<path>`, always means the bytes it meant when it was handed
out. The base name stays last because clients derive framework, extension and cache names from it. Called by `files`
and `api/models`.
"""

import re
from dataclasses import dataclass
from urllib.parse import quote, unquote

VERSION_DIGITS = 12

# non-greedy: the first `/files/` is ours, later ones belong to project or file names
_ADDRESS = re.compile(r"^(?P<prefix>https?://[^/?#]+(?:/[^?#]*?)?/files)/(?P<path>.+)$", re.DOTALL)
_VERSIONED = re.compile(rf"^\.v/(?P<version>[0-9a-f]{{{VERSION_DIGITS}}})/(?P<path>.+)$", re.DOTALL)
# placeholders that the SDK registers before an upload and after a failed one: such a model has no data
_PLACEHOLDER = re.compile(r"(?:^|/)(?P<state>uploading_file|failed_uploading)$")


class BadPath(ValueError):
    """The path leaves the store, or is empty."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Address:
    """`<prefix>/[.v/<version>/]<path>`; `path` is decoded."""

    prefix: str
    path: str
    version: str | None = None

    def __str__(self) -> str:
        versioned = f".v/{self.version}/" if self.version else ""
        return f"{self.prefix}/{versioned}{quote(self.path, safe='/')}"


def parse(uri: str) -> Address | None:
    """The address in `uri`, None when it is not on a file server mounted at `/files` (s3://, file://, …).

    Raw `#` and `?` are part of the path: the SDK leaves them unquoted when it registers a model.
    """
    match = _ADDRESS.match(uri)
    if match is None:
        return None
    path = unquote(match["path"])
    versioned = _VERSIONED.match(path)
    if versioned is None:
        return Address(prefix=match["prefix"], path=path)
    return Address(prefix=match["prefix"], path=versioned["path"], version=versioned["version"])


def split_version(path: str) -> tuple[str, str | None]:
    """A decoded request path as (path, version)."""
    match = _VERSIONED.match(path)
    return (match["path"], match["version"]) if match else (path, None)


def normalised(path: str) -> str:
    """The path as it is stored: without leading or doubled slashes.

    Raises BadPath for an empty path, `.` or `..` segments, NUL, or the reserved first segment `.v`.
    """
    segments = [segment for segment in path.split("/") if segment]
    if not segments or any(segment in (".", "..") for segment in segments) or "\0" in path or "\\.." in path:
        raise BadPath(f"not a file path: {path!r}")
    if segments[0] == ".v":
        raise BadPath("paths below .v/ are versions and cannot be written")
    return "/".join(segments)


def has_no_data(uri: str) -> bool:
    """Return True if `uri` is the SDK's placeholder for an upload that has not finished or has failed."""
    return bool(_PLACEHOLDER.search(uri))


def is_uploading(uri: str) -> bool:
    """Return True if `uri` is the SDK's placeholder for an upload that may still finish."""
    found = _PLACEHOLDER.search(uri)
    return found is not None and found["state"] == "uploading_file"


def unversioned(uri: str) -> str:
    """`uri` as its uploader wrote it."""
    address = parse(uri)
    return str(Address(prefix=address.prefix, path=address.path)) if address and address.version else uri

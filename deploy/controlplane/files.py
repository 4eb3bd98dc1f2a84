"""The file server, mounted at `/files`: multipart POST in, plain GET/HEAD out, DELETE.

It owns the directory `files/`: `content/` holds each file under its own path, `tmp/` what is being uploaded. A path
means its latest upload, as on a ClearML server. It streams in both directions, so a model of many gigabytes is never in
memory, and never lists directories. A file is on disk and synced before its upload is answered.
"""

import mimetypes
import os
from contextlib import suppress
from pathlib import Path
from tempfile import NamedTemporaryFile

from python_multipart.exceptions import MultipartParseError
from python_multipart.multipart import MultipartParser, parse_options_header
from starlette.concurrency import run_in_threadpool
from starlette.requests import ClientDisconnect, Request
from starlette.responses import FileResponse, JSONResponse, PlainTextResponse, Response

from deploy.controlplane.access import Access
from deploy.controlplane.envelope import ApiError

METHODS = ["GET", "HEAD", "POST", "PUT", "DELETE"]
# bytes that are written per call to a worker thread
PIECE = 1 << 20
# bytes of a file's name on common file systems
MAX_NAME = 255


async def drained(request: Request) -> None:
    """Read the rest of a refused body, without keeping it: a connection that is closed while a body comes loses the
    answer too, and the caller would try again instead of reading the refusal.
    """
    with suppress(ClientDisconnect, RuntimeError):  # RuntimeError: the body has already been read
        async for _ in request.stream():
            pass


class FileServer:
    """Stores, sends and deletes files. It first removes what a crash left of uploads."""

    def __init__(self, *, directory: Path, access: Access) -> None:
        self._content = directory / "content"
        self._temporary = directory / "tmp"
        self._access = access
        for path in (self._content, self._temporary):
            path.mkdir(parents=True, exist_ok=True)
        for leftover in self._temporary.iterdir():
            leftover.unlink()

    async def handle(self, request: Request) -> Response:
        """Answer any request below `/files`."""
        path = str(request.path_params.get("path", "")).strip("/")
        if not path and request.method in ("GET", "HEAD"):
            return PlainTextResponse("OK")
        try:
            self._access.identify(request.headers.get("authorization"))
            if request.method in ("POST", "PUT"):
                return await self._upload(request)
            target = self._target(path)
            if not await run_in_threadpool(target.is_file):
                return PlainTextResponse("Not found", 404)
            if request.method == "DELETE":
                await run_in_threadpool(target.unlink, missing_ok=True)
                return PlainTextResponse(path)
            kind = mimetypes.guess_type(path)[0] or "application/octet-stream"
            return FileResponse(target, media_type=kind, filename=target.name, content_disposition_type="inline")
        except ApiError as error:
            await drained(request)
            return PlainTextResponse(error.message, error.code)
        except OSError as error:
            await drained(request)
            return PlainTextResponse(f"The file cannot be stored: {error.strerror}", 507)

    async def _upload(self, request: Request) -> Response:
        media_type, options = parse_options_header(request.headers.get("content-type", ""))
        if media_type != b"multipart/form-data" or b"boundary" not in options:
            raise ApiError(400, 12, "Expected multipart/form-data with one part, named by the path of the file")
        upload = await run_in_threadpool(_Upload, self._temporary, options[b"boundary"])
        try:
            piece = bytearray()
            async for chunk in request.stream():
                piece += chunk
                if len(piece) >= PIECE:
                    await run_in_threadpool(upload.feed, bytes(piece))
                    piece.clear()
            if piece:
                await run_in_threadpool(upload.feed, bytes(piece))
            if upload.path is None or not upload.is_complete:
                raise ApiError(400, 12, "The upload is incomplete")
            target = self._target(upload.path)
            await run_in_threadpool(upload.store, target)
            return JSONResponse([str(target.relative_to(self._content))])
        except (MultipartParseError, UnicodeDecodeError) as error:
            raise ApiError(400, 12, f"Malformed upload: {error}") from error
        except ClientDisconnect:
            # the client has gone, so nobody reads this; nothing was stored
            return PlainTextResponse("The upload was interrupted", 400)
        finally:
            await run_in_threadpool(upload.discard)

    def _target(self, path: str) -> Path:
        """Where the file of a path lies.

        Raises:
            ApiError: 400 for an empty path, `.` or `..` segments, NUL, or a name that no file may have.
        """
        segments = [segment for segment in path.split("/") if segment]
        bad = any(segment in (".", "..") or len(segment.encode(errors="replace")) > MAX_NAME for segment in segments)
        if not segments or bad or "\0" in path:
            raise ApiError(400, 12, f"not a file path: {path!r:.200}")
        return self._content.joinpath(*segments)


class _Upload:
    """One multipart body of one part, written to disk as it arrives; nothing is visible before `store`."""

    def __init__(self, directory: Path, boundary: bytes) -> None:
        self._file = NamedTemporaryFile(dir=directory, delete=False)  # noqa: SIM115 - lives across calls
        self._name, self._value = bytearray(), bytearray()
        self.path: str | None = None
        self.is_complete = False
        callbacks = {
            "on_header_field": lambda data, start, end: self._name.extend(data[start:end]),
            "on_header_value": lambda data, start, end: self._value.extend(data[start:end]),
            "on_header_end": self._header_ended,
            "on_part_data": lambda data, start, end: self._file.write(data[start:end]),
            "on_end": self._ended,
        }
        self._parser = MultipartParser(boundary, callbacks)  # type: ignore[arg-type]

    def feed(self, data: bytes) -> None:
        """Take the next bytes of the body.

        Raises:
            MultipartParseError, UnicodeDecodeError: the body is malformed.
        """
        self._parser.write(data)

    def store(self, target: Path) -> None:
        """Make what was uploaded the content of `target`, on disk before this returns."""
        self._file.flush()
        os.fsync(self._file.fileno())
        target.parent.mkdir(parents=True, exist_ok=True)
        Path(self._file.name).replace(target)
        descriptor = os.open(target.parent, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def discard(self) -> None:
        """Close, and remove what was not stored."""
        self._file.close()
        with suppress(FileNotFoundError):
            os.unlink(self._file.name)  # noqa: PTH108

    def _header_ended(self) -> None:
        if bytes(self._name).lower() == b"content-disposition":
            _, options = parse_options_header(bytes(self._value))
            name = options.get(b"name") or options.get(b"filename")
            if name is None or self.path is not None:
                raise MultipartParseError("expected one part with a name")
            self.path = name.decode("utf-8").replace("%22", '"')
        self._name.clear()
        self._value.clear()

    def _ended(self) -> None:
        self.is_complete = True

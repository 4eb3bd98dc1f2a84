"""The file server, mounted at `/files`: multipart POST in, plain GET/HEAD out, DELETE.

It owns the directory `files/`: `content/` holds each file under its own path, `tmp/` what is being uploaded. A path
means its latest upload, as on a ClearML server. It streams in both directions, so a model of many gigabytes is never in
memory, and never lists directories. A file is on disk and synced before its upload is answered.
"""

import mimetypes
import os
import shutil
from contextlib import suppress
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import IO

from starlette.concurrency import run_in_threadpool
from starlette.datastructures import UploadFile
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import FileResponse, JSONResponse, PlainTextResponse, Response

from deploy.controlplane.access import Access
from deploy.controlplane.envelope import ApiError
from gateway.durable import sync

METHODS = ["GET", "HEAD", "POST", "PUT", "DELETE"]
# bytes that are copied at once
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
        try:
            async with request.form(max_files=1, max_fields=0) as form:
                part = next(iter(form.multi_items()), None)
                if part is None or not isinstance(part[1], UploadFile):
                    raise ApiError(400, 12, "Expected multipart/form-data with one file, named by its path")
                target = self._target(part[0].replace("%22", '"'))
                await run_in_threadpool(self._store, part[1].file, target)
                return JSONResponse([str(target.relative_to(self._content))])
        except HTTPException as error:
            raise ApiError(400, 12, f"Malformed upload: {error.detail}") from error
        except ClientDisconnect:
            # the client has gone, so nobody reads this; nothing was stored
            return PlainTextResponse("The upload was interrupted", 400)

    def _store(self, source: IO[bytes], target: Path) -> None:
        """Make what was uploaded the content of `target`, on disk before this returns."""
        with NamedTemporaryFile(dir=self._temporary, delete=False) as file:
            try:
                shutil.copyfileobj(source, file, PIECE)
                file.flush()
                os.fsync(file.fileno())
                target.parent.mkdir(parents=True, exist_ok=True)
                Path(file.name).replace(target)
            finally:
                Path(file.name).unlink(missing_ok=True)  # the disk may be full
        sync(target.parent)

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

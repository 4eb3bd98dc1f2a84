"""HTTP of the file server, mounted at `/files`: multipart POST in, plain GET/HEAD out, DELETE.

Called by `app`. It streams in both directions, so a model of many gigabytes is never in memory. It never lists
directories.
"""

from collections.abc import Awaitable, Callable

from python_multipart.exceptions import MultipartParseError
from python_multipart.multipart import MultipartParser, parse_options_header
from starlette.concurrency import run_in_threadpool
from starlette.requests import ClientDisconnect, Request
from starlette.responses import FileResponse, JSONResponse, PlainTextResponse, Response

from deploy.controlplane import bodies
from deploy.controlplane.access import Access
from deploy.controlplane.bodies import LIMITS, Limits
from deploy.controlplane.envelope import ApiError, StoreBusy
from deploy.controlplane.files import BadPath, Files, Upload, normalised

# Bytes that are hashed and written per call to a worker thread.
PIECE = 1 << 20
# the SDK sends one part with three headers
MAX_PARTS = 100
MAX_HEADER = 16 << 10


class FileServer:
    """Three handlers over `Files`."""

    def __init__(self, *, files: Files, access: Access, limits: Limits = LIMITS) -> None:
        self._files = files
        self._limits = limits
        self._access = access

    async def handle(self, request: Request) -> Response:
        """Answer any request below `/files`."""
        handlers: dict[str, Callable[[Request], Awaitable[Response]]] = {
            "GET": self._download,
            "HEAD": self._download,
            "POST": self._upload,
            "PUT": self._upload,
            "DELETE": self._delete,
        }
        handler = handlers.get(request.method)
        if handler is None:
            return PlainTextResponse("Method not allowed", 405, {"Allow": ", ".join(handlers)})
        try:
            return await handler(request)
        except ApiError as error:
            await bodies.discard(request, self._limits)
            return PlainTextResponse(error.message, error.code)
        except BadPath as error:
            await bodies.discard(request, self._limits)
            return PlainTextResponse(str(error), 400)
        except OSError as error:
            await bodies.discard(request, self._limits)
            return PlainTextResponse(f"The file cannot be stored: {error.strerror}", 507)
        except StoreBusy:
            return PlainTextResponse("The store is busy, try again", 503, {"Retry-After": "1"})

    async def _download(self, request: Request) -> Response:
        path = _path(request)
        if not path:
            return PlainTextResponse("OK")
        self._identify(request)
        found = await run_in_threadpool(self._files.find, path)
        if found is None:
            return PlainTextResponse("Not found", 404)
        return FileResponse(
            found.location,
            media_type=found.content_type,
            filename=found.name,
            content_disposition_type="inline",
            headers={"ETag": f'"{found.sha}"', "Cache-Control": "private, no-cache"},
        )

    async def _delete(self, request: Request) -> Response:
        self._identify(request)
        path = _path(request)
        normalised(path)
        if await run_in_threadpool(self._files.delete, path):
            return PlainTextResponse(path)
        return PlainTextResponse("Not found", 404)

    async def _upload(self, request: Request) -> Response:
        self._identify(request)
        media_type, options = parse_options_header(request.headers.get("content-type", ""))
        if media_type != b"multipart/form-data" or b"boundary" not in options:
            return PlainTextResponse("Expected multipart/form-data with one part per file, named by its path", 400)
        receiver = _Receiver(self._files, options[b"boundary"])
        try:
            await self._receive(request, receiver)
            if not receiver.is_complete:
                return PlainTextResponse("The upload is incomplete", 400)
            return JSONResponse(await run_in_threadpool(receiver.commit))
        except (MultipartParseError, UnicodeDecodeError) as error:
            return PlainTextResponse(f"Malformed upload: {error}", 400)
        except ClientDisconnect:
            # the client has gone, so nobody reads this; nothing was stored
            return PlainTextResponse("The upload was interrupted", 400)
        finally:
            await run_in_threadpool(receiver.discard)

    async def _receive(self, request: Request, receiver: "_Receiver") -> None:
        piece = bytearray()
        async for chunk in bodies.pieces(request, self._limits):
            piece += chunk
            if len(piece) >= PIECE:
                await run_in_threadpool(receiver.feed, bytes(piece))
                piece.clear()
        await run_in_threadpool(receiver.feed, bytes(piece))

    def _identify(self, request: Request) -> None:
        self._access.identify(request.headers.get("authorization"))


class _Receiver:
    """Turns the bytes of one multipart body into finished uploads. Nothing is visible before `commit`."""

    def __init__(self, files: Files, boundary: bytes) -> None:
        self._files = files
        self._header = (bytearray(), bytearray())
        self._disposition = b""
        self._target: Upload | None = None
        self._received: list[tuple[str, Upload]] = []
        self.is_complete = False
        self._parser = MultipartParser(
            boundary,
            {
                "on_part_begin": self._on_part_begin,
                "on_header_field": self._on_header_field,
                "on_header_value": self._on_header_value,
                "on_header_end": self._on_header_end,
                "on_headers_finished": self._on_headers_finished,
                "on_part_data": self._on_part_data,
                "on_end": self._on_end,
            },
        )

    def feed(self, data: bytes) -> None:
        """Take the next bytes of the body.

        Raises:
            MultipartParseError, UnicodeDecodeError: the body is malformed.
            BadPath: a part names a path that is refused.
        """
        if data:
            self._parser.write(data)

    def commit(self) -> list[str]:
        """Store all parts under their paths; return the paths."""
        paths = []
        for path, upload in self._received:
            self._files.commit(upload, path)
            paths.append(path)
        return paths

    def discard(self) -> None:
        """Remove all uncommitted parts."""
        for _, upload in self._received:
            upload.discard()

    def _on_part_begin(self) -> None:
        self._disposition = b""
        self._target = None

    def _on_header_field(self, data: bytes, start: int, end: int) -> None:
        self._extend(self._header[0], data[start:end])

    def _on_header_value(self, data: bytes, start: int, end: int) -> None:
        self._extend(self._header[1], data[start:end])

    def _extend(self, header: bytearray, more: bytes) -> None:
        header.extend(more)
        if len(header) > MAX_HEADER:
            raise MultipartParseError("a part's header is too long")

    def _on_header_end(self) -> None:
        name, value = self._header
        if bytes(name).lower() == b"content-disposition":
            self._disposition = bytes(value)
        name.clear()
        value.clear()

    def _on_headers_finished(self) -> None:
        _, options = parse_options_header(self._disposition)
        name = options.get(b"name") or options.get(b"filename")
        if name is None:
            raise MultipartParseError("a part has no name")
        if len(self._received) == MAX_PARTS:
            raise MultipartParseError(f"more than {MAX_PARTS} parts")
        path = normalised(name.decode("utf-8").replace("%22", '"'))
        self._target = self._files.begin()
        self._received.append((path, self._target))

    def _on_part_data(self, data: bytes, start: int, end: int) -> None:
        if self._target is not None:
            self._target.write(data[start:end])

    def _on_end(self) -> None:
        self.is_complete = bool(self._received)


def _path(request: Request) -> str:
    return str(request.path_params.get("path", "")).strip("/")

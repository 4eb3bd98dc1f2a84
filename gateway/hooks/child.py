"""The program of a hook process: one ``Preprocess`` class and one model, called by a gateway worker over a socket.

``gateway/hooks/pool.py`` starts it as a fresh interpreter. It imports only this package of the gateway. User code that
blocks, leaks, forks, exits or crashes harms only this process; the gateway kills and replaces it. The process ends when
its gateway ends, even if that is killed.

The main thread runs code that is not async, one request at a time; the endpoint may ask for more threads. A class with
async methods runs in an event loop in the main thread instead. Another thread reads the socket.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import faulthandler
import functools
import inspect
import itertools
import os
import queue
import resource
import signal
import socket
import sys
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from time import perf_counter_ns
from types import SimpleNamespace
from typing import Any, Final

import orjson

from gateway.hooks import engines
from gateway.hooks.json_form import to_json
from gateway.hooks.wire import MAX_PAYLOAD, Buffer, FrameReader, pack
from gateway.parent_death import end_with_parent
from preprocessing.errors import UserCodeError, UserCodeFailed, UserCodeLoadError, UserCodeRefused
from preprocessing.user_code import MAX_ERROR_CHARS, STAGES, UserCode

_CHUNK: Final = 1 << 18


class _Process:
    """The state of this process: its socket, the loaded code, and the requests in progress."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._sending = threading.Lock()
        self._frames = FrameReader()
        self._calls: dict[int, Future[Any]] = {}
        self._numbers = itertools.count(1)
        self._pid = os.getpid()
        self._inbox: queue.SimpleQueue[tuple[dict[str, Any], Buffer] | None] = queue.SimpleQueue()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._arrived: asyncio.Event | None = None
        self._tasks: dict[int, asyncio.Task[None]] = {}
        self._code: UserCode | None = None
        self._model: Any = None
        self._engine = ""

    def run(self) -> None:
        """Load the code and the model that the first frame names, then answer requests until the gateway closes."""
        os.register_at_fork(after_in_child=self._forked)
        threading.Thread(target=self._read, name="gateway", daemon=True).start()
        first = self._inbox.get()
        if first is None:
            return
        head, _ = first
        try:
            self._load(head)
        except UserCodeLoadError as error:
            self._send({"k": "unloadable", "message": error.message, "hint": error.hint or ""})
            return
        _limit_memory(int(head["memory"]))
        code = self._code
        is_async = code is not None and any(map(code.is_async, STAGES))
        self._send({"k": "loaded", "is_async": is_async, "stages": [] if code is None else code.stages})
        if is_async:
            with asyncio.Runner() as runner:
                runner.run(self._serve_loop(int(head["threads"])))
        else:
            for _ in range(int(head["threads"]) - 1):
                threading.Thread(target=self._serve, daemon=True).start()
            self._serve()
        if code is not None:
            with contextlib.suppress(UserCodeError):
                code.unload()

    # --- loading ------------------------------------------------------------------------------------------------------

    def _load(self, head: Mapping[str, Any]) -> None:
        self._engine = head["engine"]
        model_path = Path(head["model_path"]) if head["model_path"] else None
        if head["code"]:
            self._code = UserCode.load(
                Path(head["code"]), name=head["name"], endpoint=SimpleNamespace(**head["endpoint"]),
                send_request=self._send_request, model_path=model_path,
            )  # fmt: skip
            self._model = self._code.model
        if self._engine in engines.ENGINES and self._model is None:
            self._model = engines.load_model(self._engine, model_path)
        is_body = self._code is None or "preprocess" not in self._code.stages
        self._predictor = _Predictor(self._engine, self._model, is_body=is_body)

    # --- requests -----------------------------------------------------------------------------------------------------

    def _serve(self) -> None:
        while (frame := self._inbox.get()) is not None:
            if frame[0]["k"] == "run":
                # This coroutine serves threads and the event loop. Here nothing in it suspends, so one `send` runs it.
                with contextlib.suppress(StopIteration):
                    self._answer(*frame, _call_here).send(None)
        self._inbox.put(None)  # for the other threads

    async def _serve_loop(self, threads: int) -> None:
        self._loop = loop = asyncio.get_running_loop()
        pool = ThreadPoolExecutor(max(threads, 8))

        async def call(hook: Callable[..., Any], is_async: bool, *arguments: Any) -> Any:
            if is_async:
                return await hook(*arguments)
            result = await loop.run_in_executor(pool, hook, *arguments)
            return await result if inspect.isawaitable(result) else result

        self._arrived = arrived = asyncio.Event()
        arrived.set()
        while True:
            await arrived.wait()
            arrived.clear()
            while not self._inbox.empty():
                frame = self._inbox.get()
                if frame is None:
                    for task in self._tasks.values():
                        task.cancel()
                    await asyncio.gather(*self._tasks.values(), return_exceptions=True)
                    return
                number = frame[0]["id"]
                if frame[0]["k"] == "cancel":
                    if number in self._tasks:
                        self._tasks[number].cancel()
                    continue
                task = self._tasks[number] = asyncio.create_task(self._answer(*frame, call))
                task.add_done_callback(functools.partial(self._ended, number))

    def _ended(self, number: int, task: asyncio.Task[None]) -> None:
        del self._tasks[number]
        if task.cancelled():
            self._send({"k": "done", "id": number, "broken": "it was cancelled"})

    async def _answer(self, head: dict[str, Any], payload: Buffer, call: Callable[..., Any]) -> None:
        try:
            await self._work(head, payload, call)
        except Exception as error:  # noqa: BLE001 - the thread must go on with the next request
            faulthandler.dump_traceback(sys.stderr)
            self._send({"k": "done", "id": head["id"], "broken": f"{type(error).__name__}: {error}"})

    async def _work(self, head: dict[str, Any], payload: Buffer, call: Callable[..., Any]) -> None:
        data: Any = orjson.loads(payload) if head["json"] else bytes(payload)
        state: dict[str, Any] = {}
        collected: dict[str, Any] = {}
        statistics = functools.partial(_collect, collected)
        spent = [0, 0, 0]
        failure: UserCodeError | None = None
        # A class for a model in Triton runs here only to be tried out (``gateway.trial``), without the model.
        for number, stage in enumerate(STAGES[:1] if self._engine == "triton" else STAGES):
            is_model = stage == "process" and self._engine in engines.ENGINES
            code: Any = self._predictor if is_model else self._code
            if code is None:
                continue
            started = perf_counter_ns()
            try:
                data = await call(getattr(code, stage), code.is_async(stage), data, state, statistics)
            except UserCodeError as error:
                failure = error
                break
            finally:
                spent[number] = perf_counter_ns() - started
        if os.getpid() != self._pid:
            os._exit(0)  # a fork that a hook left running: the original process answers
        outcome, part = _outcome(data, failure)
        told = {
            "k": "done",
            "id": head["id"],
            "ns": spent,
            "statistics": collected,
            "is_spent": _has_no_memory(failure),
        }
        self._send(told | outcome, part)

    def _send_request(self, endpoint: str, version: str | None = None, data: Any = None) -> Any:
        """The hook's ``self.send_request``, answered by the gateway.

        Returns an awaitable on the event loop; blocks and returns the answer elsewhere.
        """
        number = next(self._numbers)
        answer: Future[Any] = Future()
        self._calls[number] = answer
        payload = to_json(data)
        self._send({"k": "call", "id": number, "endpoint": endpoint, "version": version}, payload)
        if self._engine == "custom_async" or self._is_on_loop():
            return _wrapped(answer)
        return answer.result()

    def _is_on_loop(self) -> bool:
        try:
            return asyncio.get_running_loop() is self._loop
        except RuntimeError:
            return False

    # --- the socket ---------------------------------------------------------------------------------------------------

    def _send(self, head: Mapping[str, Any], payload: bytes = b"") -> None:
        with self._sending, contextlib.suppress(OSError):  # the gateway is gone: `_read` ends the process
            if len(payload) > MAX_PAYLOAD:
                reason = f"its result has {len(payload) >> 20} MiB, at most {MAX_PAYLOAD >> 20} are allowed"
                head, payload = {"k": head["k"], "id": head["id"], "broken": reason}, b""
            self._connection.sendall(pack(head, payload))

    def _read(self) -> None:
        while True:
            try:
                data = self._connection.recv(_CHUNK)
            except OSError as error:
                if error.errno in (errno.EBADF, errno.ENOTSOCK):
                    # User code has closed our socket. Its request runs into its time limit; then the gateway kills
                    # this process. If the gateway ends first, the kernel does.
                    threading.Event().wait()
                data = b""
            if not data:
                os._exit(0)  # the gateway is gone, so no one needs the results
            for head, payload in self._frames.feed(data):
                if head["k"] == "reply":
                    waiting = self._calls.pop(head["id"], None)
                    if waiting is not None and waiting.set_running_or_notify_cancel():  # not cancelled meanwhile
                        waiting.set_result(orjson.loads(payload) if payload else None)
                    continue
                self._inbox.put(None if head["k"] == "close" else (head, payload))
                if self._loop is not None and self._arrived is not None:
                    with contextlib.suppress(RuntimeError):  # the loop has ended, so the process is ending
                        self._loop.call_soon_threadsafe(self._arrived.set)

    def _forked(self) -> None:
        # A process that a hook forks must not keep the socket open, and must not outlive the gateway.
        self._connection.close()
        end_with_parent(os.getppid())


class _Predictor:
    """Gives an engine's model the interface of a ``Preprocess`` class with only ``process``."""

    def __init__(self, engine: str, model: Any, *, is_body: bool) -> None:
        self._engine = engine
        self._model = model
        self._is_body = is_body

    def is_async(self, _stage: str) -> bool:
        return False

    def process(self, data: Any, _state: Any, _statistics: Any) -> Any:
        try:
            return engines.predict(self._engine, self._model, data, is_body=self._is_body)
        except ValueError as error:
            text = str(error)[:MAX_ERROR_CHARS]
            raise UserCodeRefused(text or "predict refused the data", stage="process") from error
        except BaseException as error:
            text = f"predict raised {type(error).__name__}: {str(error)[:MAX_ERROR_CHARS]}"
            raise UserCodeFailed(text, stage="process", original=error) from error


def _outcome(answer: Any, error: UserCodeError | None) -> tuple[dict[str, Any], bytes]:
    if error is None:
        try:
            return _answer_form(answer)
        except (TypeError, ValueError, RecursionError, AttributeError) as unfit:
            what = f"the answer cannot be written as JSON: {unfit}"
            error = UserCodeFailed(what, stage="postprocess", original=unfit)
            error.hint = "return dicts, lists, strings, numbers or arrays"
    kind = "refused" if isinstance(error, UserCodeRefused) else "failed"
    return {"is": kind, "message": error.message, "hint": error.hint or ""}, b""


async def _call_here(hook: Callable[..., Any], _is_async: bool, *arguments: Any) -> Any:
    result = hook(*arguments)
    return asyncio.run(_awaiting(result)) if inspect.isawaitable(result) else result


async def _wrapped(answer: Future[Any]) -> Any:
    return await asyncio.wrap_future(answer)


async def _awaiting(awaitable: Any) -> Any:
    return await awaitable


def _answer_form(answer: Any) -> tuple[dict[str, Any], bytes]:
    if isinstance(answer, bytes | bytearray | memoryview):
        return {"is": "bytes"}, bytes(answer)
    content = getattr(answer, "body", None)
    status = getattr(answer, "status_code", None)
    if isinstance(content, bytes) and isinstance(status, int):
        # As in clearml-serving, a hook may return a Starlette response.
        headers = [[k.decode("latin-1"), v.decode("latin-1")] for k, v in getattr(answer, "raw_headers", [])]
        return {"is": "response", "status": status, "headers": headers}, content
    return {"is": "json"}, to_json(answer)


def _collect(found: dict[str, Any], values: object) -> None:
    # A value that has no JSON form cannot be counted. It is dropped, and the request is still answered.
    if isinstance(values, Mapping):
        for name, value in values.items():
            with contextlib.suppress(TypeError, ValueError, RecursionError):
                found[str(name)] = orjson.loads(to_json(value))


def _has_no_memory(error: UserCodeError | None) -> bool:
    """Return whether code failed at the memory limit: what its process holds may be incomplete, so it is replaced."""
    return error is not None and isinstance(getattr(error, "original", None) or error.__cause__, MemoryError)


def _limit_memory(most: int) -> None:
    """Limit this process to ``most`` bytes more than it has now. The gateway watches the memory in use."""
    _, hard = resource.getrlimit(resource.RLIMIT_DATA)
    held = 0
    with contextlib.suppress(OSError, StopIteration):
        lines = Path("/proc/self/status").read_text().splitlines()
        held = next(int(line.split()[1]) << 10 for line in lines if line.startswith("VmData"))
    wanted = held + most
    resource.setrlimit(resource.RLIMIT_DATA, (wanted if hard < 0 else min(wanted, hard), hard))


def main(descriptor: int, parent: int) -> None:
    """Serve the process ``parent`` over the socket ``descriptor``."""
    end_with_parent(parent)
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    faulthandler.enable(sys.stderr)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    os.set_inheritable(descriptor, False)
    _Process(socket.socket(fileno=descriptor)).run()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)  # even if user code has left threads running

"""Loads a user's `Preprocess` class, written for clearml-serving, and gives its hooks a uniform signature.

The gateway calls `UserCode.load` once per endpoint version in a worker thread, then the hooks, each as
`hook(data, state, statistics)`. The differences between users' classes (single file or package, sync or async, missing
methods, fewer parameters) are resolved here, once, at load. Exceptions of user code, including `SystemExit` and
`KeyboardInterrupt`, become `UserCodeError`; only the cancellation of the task that awaits a hook passes through.

Each load gets its own modules under a unique name: two endpoints with a `utils.py` each do not share it, and code that
is loaded again is read again. A folder is a package, as in clearml-serving: its files import each other relatively.
`sys.path` is not changed.

Nothing here starts threads, processes or event loops, or limits time; the gateway decides how hooks run.
"""

from __future__ import annotations

import asyncio
import functools
import importlib
import importlib.util
import inspect
import re
import sys
import traceback
import uuid
from collections.abc import Awaitable, Callable, Iterator, MutableMapping
from importlib.machinery import ModuleSpec, SourceFileLoader
from pathlib import Path
from types import ModuleType
from typing import Any, Final, Literal, TypeAlias, TypeVar, cast

from preprocessing.errors import InvalidInput, UserCodeFailed, UserCodeLoadError, UserCodeRefused

_T = TypeVar("_T")

Stage: TypeAlias = Literal["preprocess", "process", "postprocess"]
Statistics: TypeAlias = Callable[[dict[str, Any]], None]
Hook: TypeAlias = Callable[[Any, MutableMapping[str, Any], Statistics | None], Any]

STAGES: Final[tuple[Stage, ...]] = ("preprocess", "process", "postprocess")

MAX_ERROR_CHARS: Final = 2000
"""Of an exception's text: Python often puts the value that it could not convert into it, and a caller chose that."""
_CLASS: Final = "Preprocess"
_PLACES: Final = {"state": 1, "collect_custom_statistics_fn": 2}
"""Where the parameters of a hook with these names stand."""
_SKELETON: Final = "a file that defines `class Preprocess:` with preprocess, process or postprocess"


class UserCode:
    """A loaded `Preprocess` object. Its hooks are attributes of the same names and may be called from any thread.

    A missing hook returns its data unchanged, as in clearml-serving. If `is_async(stage)`, the hook returns an
    awaitable. Otherwise it blocks while the user's code runs; it may still return an awaitable, if a plain method
    returns a coroutine, which must then be awaited.
    """

    def __init__(self, name: str, instance: object, modules: _Modules) -> None:
        self.name = name
        self.instance = instance
        self.model: Any = None
        """The return value of the class's own `load`."""
        self._modules = modules
        self._methods = {stage: method for stage in STAGES if (method := _method(instance, stage)) is not None}
        self._async = frozenset(stage for stage, method in self._methods.items() if _is_async(method))
        self.stages: list[Stage] = [stage for stage in STAGES if stage in self._methods]
        """The stages that the class has, in order. With `process`, no backend is needed."""
        self.preprocess: Hook = self._hook("preprocess")
        self.process: Hook = self._hook("process")
        self.postprocess: Hook = self._hook("postprocess")
        self._unloaded = False

    @classmethod
    def load(
        cls,
        path: Path,
        *,
        name: str,
        endpoint: object,
        send_request: Callable[..., Any],
        model_path: Path | None = None,
    ) -> UserCode:
        """Import the file or folder, make the object, set `model_endpoint` and `send_request`, and call its `load`.

        `self.send_request(...)` calls `send_request(endpoint, version, data)`; pass an async function if hooks are to
        await it. Raises UserCodeLoadError, and then leaves nothing behind.
        """
        modules = _Modules(path, name)
        try:
            user_class = _guarded("import", modules, lambda: _find_class(modules))
            instance = _guarded("load", modules, lambda: _instantiate(user_class, endpoint, send_request))
            code = _guarded("load", modules, lambda: cls(name, instance, modules))
            load = _method(instance, "load")
            if load is not None:
                code.model = _guarded("load", modules, lambda: _call_load(load, model_path))
        except BaseException:
            modules.forget()
            raise
        return code

    def is_async(self, stage: Stage) -> bool:
        """Whether the hook is a coroutine function, which is awaited instead of run in a thread."""
        return stage in self._async

    def unload(self) -> None:
        """Call the class's own `unload`, if it has one, and drop its modules. Further calls do nothing.

        No hook may be running. Raises UserCodeFailed if the user's `unload` raises, after everything was dropped.
        """
        if self._unloaded:
            return
        self._unloaded = True
        try:
            unload = _method(self.instance, "unload")
            if unload is not None:
                result = unload()
                if inspect.iscoroutine(result):
                    result.close()
                    raise TypeError("unload must be a plain function: nothing awaits it")
        except BaseException as error:
            raise _stage_error("unload", error, self._modules) from error
        finally:
            self._modules.forget()

    def _hook(self, stage: Stage) -> Hook:
        method = self._methods.get(stage)
        if method is None:
            return _unchanged
        call = _with_three_arguments(stage, method)
        modules = self._modules

        def hook(data: Any, state: MutableMapping[str, Any], statistics: Statistics | None = None) -> Any:
            try:
                result = call(data, state, statistics)
            except BaseException as error:
                raise _stage_error(stage, error, modules) from error
            return _awaited(stage, result, modules) if inspect.isawaitable(result) else result

        return hook


def _unchanged(data: Any, state: MutableMapping[str, Any], statistics: Statistics | None = None) -> Any:  # noqa: ARG001 the shape of every hook
    return data


async def _awaited(stage: str, awaitable: Awaitable[Any], modules: _Modules) -> Any:
    try:
        return await awaitable
    except asyncio.CancelledError as error:
        task = asyncio.current_task()
        if task is None or task.cancelling():
            raise  # this task was cancelled; otherwise the hook let its own cancellation escape, which is a failure
        raise _stage_error(stage, error, modules) from error
    except GeneratorExit:
        raise  # the coroutine is being closed
    except BaseException as error:
        raise _stage_error(stage, error, modules) from error


# --- the class and its object -----------------------------------------------------------------------------------------


def _find_class(modules: _Modules) -> type:
    for module in modules.candidates():
        found = vars(module).get(_CLASS)
        if isinstance(found, type):
            return found
        if found is not None:
            raise UserCodeLoadError(
                f"{_CLASS} in {modules.shown} is not a class", stage="import", hint=f"expected {_SKELETON}"
            )
    raise UserCodeLoadError(
        f"{modules.shown} defines no class {_CLASS}",
        stage="import",
        hint=f"expected {_SKELETON}; in a folder, in preprocess.py or __init__.py",
    )


def _instantiate(user_class: type, endpoint: object, send_request: Callable[..., Any]) -> object:
    def send(_self: object, endpoint: str, version: str | None = None, data: Any = None) -> Any:
        return send_request(endpoint, version, data)

    user_class.send_request = send  # type: ignore[attr-defined] # clearml-serving's contract: the class gets it
    instance: object = user_class()
    instance.model_endpoint = endpoint  # type: ignore[attr-defined] # clearml-serving's contract
    return instance


def _call_load(load: Callable[..., Any], model_path: Path | None) -> Any:
    if _is_async(load):
        raise UserCodeLoadError(
            "load is an async function", stage="load", hint="make it a plain one: it runs once, before any request"
        )
    return load(None if model_path is None else str(model_path))


def _method(instance: object, name: str) -> Callable[..., Any] | None:
    found = getattr(instance, name, None)
    return found if callable(found) else None


def _is_async(method: Callable[..., Any]) -> bool:
    while isinstance(method, functools.partial):
        method = method.func
    return inspect.iscoroutinefunction(method) or inspect.iscoroutinefunction(getattr(method, "__call__", None))  # noqa: B004 not a test for callable


def _with_three_arguments(stage: str, method: Callable[..., Any]) -> Callable[..., Any]:
    """Return the method as `(data, state, statistics)`; it may leave out the last ones."""
    try:
        signature = inspect.signature(method)
    except (TypeError, ValueError):
        return method  # built-in callables have no signature
    names = list(signature.parameters)[:3]
    if not any(_PLACES.get(name, place) != place for place, name in enumerate(names)):
        for count in (3, 2, 1):
            try:
                signature.bind(*[None] * count)
            except TypeError:
                continue
            return method if count == 3 else _with_the_first(count, method)
    raise UserCodeLoadError(
        f"{stage} cannot be called: its parameters are {', '.join(('self', *names))}",
        stage="load",
        hint=f"declare it as {stage}(self, body, state, collect_custom_statistics_fn); the last ones may be left out",
    )


def _with_the_first(count: int, method: Callable[..., Any]) -> Callable[..., Any]:
    def call(*arguments: Any) -> Any:
        return method(*arguments[:count])

    return call


# --- errors -----------------------------------------------------------------------------------------------------------


def _guarded(stage: str, modules: _Modules, step: Callable[[], _T]) -> _T:
    """Run a step of loading; exceptions of user code become UserCodeLoadError with the place."""
    try:
        return step()
    except UserCodeLoadError:
        raise
    except BaseException as error:
        where = modules.where(error)
        hint = None
        if isinstance(error, ModuleNotFoundError) and error.name:
            hint = f"install it where the gateway runs; a file beside the code: from .{error.name} import …"
        elif isinstance(error, SystemExit):
            hint = "code that is served must not end the process"
        doing = "importing" if stage == "import" else "loading"
        raise UserCodeLoadError(
            f"{doing.capitalize()} {modules.shown} failed: {_description(error)}{f' at {where}' if where else ''}",
            stage=stage,
            where=where,
            hint=hint,
        ) from error


def _stage_error(stage: str, error: BaseException, modules: _Modules) -> UserCodeRefused | UserCodeFailed:
    """Translate a hook's exception: ValueError refuses the request, all others are failures of the hook."""
    where = modules.where(error)
    if isinstance(error, InvalidInput):
        return UserCodeRefused(error.message, stage=stage, where=where, hint=error.hint)
    if isinstance(error, ValueError):
        return UserCodeRefused(_text_of(error) or f"{stage} refused the request", stage=stage, where=where)
    place = f" at {where}" if where else ""
    return UserCodeFailed(f"{stage} raised {_description(error)}{place}", stage=stage, original=error, where=where)


def _description(error: BaseException) -> str:
    if isinstance(error, SyntaxError):
        return f"{type(error).__name__}: {error.msg}"
    text = _text_of(error)
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def _text_of(error: BaseException) -> str:
    """Return the exception's text; `__str__` is user code and may raise too."""
    try:
        return str(error)[:MAX_ERROR_CHARS]
    except Exception:  # noqa: BLE001 the user-code boundary
        return "(its message cannot be shown)"


# --- modules ----------------------------------------------------------------------------------------------------------


class _Modules:
    """The modules of one load: a module, or a package of a folder's files, with a unique name; dropped together."""

    def __init__(self, path: Path, name: str) -> None:
        self.shown = path.name
        self._path = path.resolve()
        self._name = f"_user_code_{re.sub(r'[^0-9a-zA-Z]+', '_', name)}_{uuid.uuid4().hex}"

    def candidates(self) -> Iterator[ModuleType]:
        """Yield the modules that may define the class, in order of preference; each is imported when yielded."""
        if not self._path.exists():
            raise UserCodeLoadError(f"{self.shown} does not exist", stage="import", hint=f"expected {_SKELETON}")
        folder = self._path.is_dir()
        entries = (self._path / "__init__.py", self._path / "preprocess.py") if folder else (self._path,)
        files = [file for file in entries if file.is_file()]
        if not files:
            raise UserCodeLoadError(
                f"The folder {self.shown} has neither preprocess.py nor __init__.py",
                stage="import",
                hint=f"expected {_SKELETON}",
            )
        # A bundle's folder has no files but those of its manifest, and bytecode is not told from that of an older file
        # of the same second and size.
        sys.dont_write_bytecode = True
        importlib.invalidate_caches()  # which files a folder has is remembered, too
        loader = SourceFileLoader(self._name, str(files[0]))
        places = [str(self._path)] if folder else None
        spec = importlib.util.spec_from_file_location(self._name, loader=loader, submodule_search_locations=places)
        spec = cast("ModuleSpec", spec)  # there is one, because the loader was given
        sys.modules[self._name] = module = importlib.util.module_from_spec(spec)
        loader.exec_module(module)
        yield module
        if len(files) > 1:
            yield importlib.import_module(f"{self._name}.preprocess")

    def where(self, error: BaseException) -> str | None:
        """Return `file:line` of the deepest frame of the error in the user's code; None if there is none."""
        if isinstance(error, SyntaxError) and error.filename:
            return f"{self._relative(error.filename) or Path(error.filename).name}:{error.lineno}"
        found = None
        for frame, line in traceback.walk_tb(error.__traceback__):
            file = self._relative(frame.f_code.co_filename)
            found = found if file is None else f"{file}:{line}"
        return found

    def forget(self) -> None:
        """Remove the modules from the interpreter; objects that use them stay valid."""
        for module in [name for name in list(sys.modules) if name == self._name or name.startswith(f"{self._name}.")]:
            sys.modules.pop(module, None)

    def _relative(self, filename: str) -> str | None:
        file = Path(filename)
        if self._path.is_dir():
            return file.relative_to(self._path).as_posix() if file.is_relative_to(self._path) else None
        return file.name if file == self._path else None

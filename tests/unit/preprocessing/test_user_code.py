from __future__ import annotations

import asyncio
import inspect
import sys
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from preprocessing.errors import UserCodeError, UserCodeFailed, UserCodeLoadError, UserCodeRefused
from preprocessing.user_code import STAGES, UserCode

ENDPOINT = SimpleNamespace(serving_url="minilm", version="1")

Write = Callable[..., Path]


@pytest.fixture(autouse=True)
def nothing_stays_behind() -> Iterator[None]:
    """Check that loading and unloading leaves the interpreter's modules and its path unchanged."""
    modules, path = set(sys.modules), list(sys.path)
    yield
    assert path == sys.path
    assert [] == [name for name in set(sys.modules) - modules if name.startswith("_user_code_")]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    """Write one file, or a folder of files."""

    def write(source: str | None = None, folder: str = "code", **files: str) -> Path:
        if source is not None:
            path = tmp_path / "preprocess.py"
            path.write_text(textwrap.dedent(source))
            return path
        for name, content in files.items():
            path = tmp_path / folder / f"{name.replace('___', '/')}.py"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(textwrap.dedent(content))
        return tmp_path / folder

    return write


@pytest.fixture
def load() -> Iterator[Callable[..., UserCode]]:
    """Load, and unload whatever was loaded when the test ends."""
    loaded: list[UserCode] = []

    def load(path: Path, name: str = "minilm/1", **options: Any) -> UserCode:
        options = {"endpoint": ENDPOINT, "send_request": lambda *_: None, **options}
        loaded.append(UserCode.load(path, name=name, **options))
        return loaded[-1]

    yield load
    for code in loaded:
        code.unload()


Load = Callable[..., UserCode]

CLEARML_EXAMPLE = """
    from typing import Any, Callable, Optional
    import numpy as np

    class Preprocess(object):
        def preprocess(self, body: dict, state: dict,
                       collect_custom_statistics_fn: Optional[Callable[[dict], None]] = None) -> Any:
            state["seen"] = body["x0"]
            if collect_custom_statistics_fn:
                collect_custom_statistics_fn({"x0": body["x0"]})
            return [[body.get("x0", None), body.get("x1", None)], ]

        def postprocess(self, data: Any, state: dict,
                        collect_custom_statistics_fn: Optional[Callable[[dict], None]] = None) -> dict:
            return dict(y=data.tolist() if isinstance(data, np.ndarray) else data, seen=state["seen"])
"""


def test_clearml_example_runs_unchanged(write: Write, load: Load) -> None:
    """A class of clearml-serving's own examples, with its types and statistics."""
    code, state, seen = load(write(CLEARML_EXAMPLE)), {}, []
    assert [[1, 2]] == code.preprocess({"x0": 1, "x1": 2}, state, seen.append)
    assert {"y": 3, "seen": 1} == code.postprocess(3, state, seen.append)
    assert [{"x0": 1}] == seen
    assert ["preprocess", "postprocess"] == code.stages


@pytest.mark.parametrize("body", ["pass", "process = None"])
def test_missing_hooks_pass_their_data_on(write: Write, load: Load, body: str) -> None:
    """As in clearml-serving; what cannot be called is no hook."""
    code = load(write(f"class Preprocess:\n    {body}"))
    assert [] == code.stages
    assert [(False, {"a": 1})] * 3 == [(code.is_async(s), getattr(code, s)({"a": 1}, {}, None)) for s in STAGES]


def test_load_gets_the_model_and_knows_the_endpoint(write: Write, load: Load, tmp_path: Path) -> None:
    """The path is a text, as in clearml-serving, or None if the endpoint has no model. Its result is kept."""
    path = write("class Preprocess:\n    def load(self, file):\n        return self.model_endpoint.serving_url, file")
    assert ("minilm", str(tmp_path)) == load(path, model_path=tmp_path).model
    assert ("minilm", None) == load(path).model


def test_send_request_reaches_other_endpoints(write: Write, load: Load) -> None:
    """With clearml-serving's signature. It returns the result of the server's function."""
    source = """
        class Preprocess:
            @classmethod
            def process(cls, data, state, collect_custom_statistics_fn=None):
                return [cls().send_request("a"), cls().send_request(endpoint="b", version="2", data=data)]
            postprocess = len
    """
    code = load(write(source), send_request=lambda *arguments: arguments)
    assert [("a", None, None), ("b", "2", {"x": 1})] == code.process({"x": 1}, {}, None)
    assert 1 == code.postprocess({"x": 1}, {}, None), "all callable attributes are hooks"


# --- signatures -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("parameters", "expected"),
    [
        ("body", ["data"]),
        ("body, state", ["data", "state"]),
        ("body, s", ["data", "state"]),
        ("body, state, threshold=0.5", ["data", "state", "fn"]),
        ("a, b, c", ["data", "state", "fn"]),
        ("a, b, c, d=4", ["data", "state", "fn"]),
        ("*args", ["data", "state", "fn"]),
        ("body, *args", ["data", "state", "fn"]),
        ("body, /, state", ["data", "state"]),
        ("body, state, collect_custom_statistics_fn=None, **kwargs", ["data", "state", "fn"]),
    ],
)
@pytest.mark.parametrize("prefix", ["", "async "])
async def test_hooks_may_take_fewer_arguments(
    write: Write, load: Load, parameters: str, expected: list[str], prefix: str
) -> None:
    """By position, as in clearml-serving; the last ones may be left out."""
    body = "return [v for v in flatten(list(locals().values())) if v in ('data', 'state', 'fn')]"
    flat = "flatten = lambda vs: [x for v in vs for x in (v if isinstance(v, tuple) else [v])]"
    code = load(write(f"{flat}\nclass Preprocess:\n    {prefix}def process(self, {parameters}):\n        {body}"))
    result = code.process("data", "state", "fn")
    assert expected == (await result if inspect.isawaitable(result) else result)


@pytest.mark.parametrize(
    "parameters",
    [
        *("self", "self, a, b, c, d", "self, a, *, needed", "self, body, *, state"),
        *("body, state, collect_custom_statistics_fn", "self, body, collect_custom_statistics_fn=None"),
    ],
)
def test_hooks_that_cannot_be_called_are_refused_at_load(write: Write, load: Load, parameters: str) -> None:
    """Not by the first request. The message shows the right form."""
    with pytest.raises(UserCodeLoadError, match=r"process\(self, body, state, collect_custom_statistics_fn\)"):
        load(write(f"class Preprocess:\n    def process({parameters}): pass"))


# --- async ------------------------------------------------------------------------------------------------------------


async def test_async_hooks_are_known_and_awaited(write: Write, load: Load) -> None:
    """The gateway awaits them and runs the others in threads."""
    source = """
        import functools
        class Preprocess:
            async def preprocess(self, body, state, collect_custom_statistics_fn=None): return body + 1
            def process(self, data, state): return self.preprocess(data, state)
            postprocess = functools.partialmethod(preprocess)
    """
    code = load(write(source))
    assert [True, False, True] == [code.is_async(stage) for stage in STAGES]
    assert 2 == await code.preprocess(1, {}, None)
    assert 2 == await code.process(1, {}, None)


async def test_cancellation_reaches_an_async_hook_and_its_caller(write: Write, load: Load) -> None:
    """A client that leaves ends the hook, which does not count as a failure."""
    source = """
        import asyncio
        class Preprocess:
            async def process(self, data, state):
                try:
                    await asyncio.sleep(60)
                finally:
                    data.append("cleaned up")
    """
    events: list[str] = []
    task = asyncio.create_task(load(write(source)).process(events, {}, None))
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert ["cleaned up"] == events


async def test_a_hooks_own_cancellation_is_its_failure(write: Write, load: Load) -> None:
    """The request was not cancelled, so it must be answered."""
    source = """
        import asyncio
        class Preprocess:
            async def process(self, data, state): raise asyncio.CancelledError
            def postprocess(self, data, state): raise asyncio.CancelledError
    """
    code = load(write(source))
    with pytest.raises(UserCodeFailed, match="CancelledError"):
        await code.process({}, {}, None)
    with pytest.raises(UserCodeFailed, match="CancelledError"):
        code.postprocess({}, {}, None)


# --- what hooks raise -------------------------------------------------------------------------------------------------

RAISING = """
    from preprocessing.errors import InvalidInput
    class Rude(Exception):
        def __str__(self): raise RuntimeError("no")
    class Preprocess:
        def preprocess(self, body, state):
            raise {error}
        async def process(self, body, state):
            raise {error}
        def postprocess(self, body, state):
            return self.process(body, state)
"""


async def raised(code: UserCode, stage: str) -> UserCodeError:
    """Return the exception of a hook's call, awaited if needed."""

    async def call() -> None:
        await getattr(code, stage)({}, {}, None)

    with pytest.raises(UserCodeError) as caught:
        await call()
    return caught.value


@pytest.mark.parametrize("stage", STAGES)
@pytest.mark.parametrize(
    "error",
    [
        *("KeyError('x0')", "TypeError('no')", "RuntimeError()", "SystemExit(3)", "KeyboardInterrupt()"),
        *("MemoryError()", "RecursionError()", "AssertionError()", "Rude()", "BaseException('base')"),
    ],
)
async def test_whatever_a_hook_raises_is_a_failure_of_the_hook(
    write: Write, load: Load, stage: str, error: str
) -> None:
    """No exception of a hook ends a process. The original and its position are kept."""
    caught = await raised(load(write(RAISING.format(error=error))), stage)
    assert isinstance(caught, UserCodeFailed)
    assert (stage, error.partition("(")[0]) == (caught.stage, type(caught.original).__name__)
    assert caught.__cause__ is caught.original
    assert caught.where == ("preprocess.py:7" if stage == "preprocess" else "preprocess.py:9")
    assert f"{stage} raised {error.partition('(')[0]}" in str(caught)
    assert caught.where in str(caught)


@pytest.mark.parametrize("stage", STAGES)
@pytest.mark.parametrize(
    ("error", "message"),
    [
        ("ValueError('x0 must be positive')", "x0 must be positive"),
        ("InvalidInput('x0 must be positive', field='x0')", "x0 must be positive"),
        ("ValueError()", "{stage} refused the request"),
    ],
)
async def test_value_error_refuses_the_request(write: Write, load: Load, stage: str, error: str, message: str) -> None:
    """Its text is the message; an empty one would not help."""
    caught = await raised(load(write(RAISING.format(error=error))), stage)
    assert isinstance(caught, UserCodeRefused)
    assert (stage, message.format(stage=stage)) == (caught.stage, str(caught).partition(" (")[0])


def test_failure_in_a_library_is_located_in_the_users_code(write: Write, load: Load) -> None:
    """At the line that its author can change, not inside the library."""
    path = write(
        preprocess="from . import parts\nclass Preprocess:\n  def process(self, data):\n    return parts.go(data)\n",
        parts="import json\n\ndef go(x):\n    return json.dumps(x)\n",
    )
    with pytest.raises(UserCodeFailed, match="TypeError") as caught:
        load(path).process({1j}, {}, None)
    assert "parts.py:4" == caught.value.where


# --- what loading raises ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("source", "message", "where"),
    [
        ("x = 1\nclass Preprocess:\n  def f(self:\n    pass", "SyntaxError", "preprocess.py:3"),
        ("import no_such_module_anywhere", "from .no_such_module_anywhere import …", "preprocess.py:1"),
        ("\n\n1 / 0", "ZeroDivisionError", "preprocess.py:3"),
        ("import sys\nsys.exit(1)", "SystemExit", "preprocess.py:2"),
        ("raise KeyboardInterrupt", "KeyboardInterrupt", "preprocess.py:1"),
        ("x = 1", "defines no class Preprocess", None),
        ("Preprocess = 3", "is not a class", None),
        ("def Preprocess(): pass", "is not a class", None),
        ("class Preprocess:\n  def __init__(self): raise OSError('no GPU')", "OSError: no GPU", "preprocess.py:2"),
        ("class Preprocess:\n  def __init__(self, x): pass", "TypeError", None),
        ("class Preprocess:\n  __slots__ = ()", "model_endpoint", None),
        ("class Preprocess:\n  def load(self, p): exit()", "SystemExit", "preprocess.py:2"),
        (
            "class Preprocess:\n  def load(self, p): raise ValueError('bad file')",
            "ValueError: bad file",
            "preprocess.py:2",
        ),
        ("class Preprocess:\n  async def load(self, p): pass", "load is an async function", None),
        ("class Preprocess:\n  @property\n  def process(self): 1 / 0", "ZeroDivisionError", "preprocess.py:3"),
        ("\x00", "null bytes", None),
        ("# coding: klingon", "klingon", None),
    ],
)
def test_code_that_cannot_be_loaded_says_why_and_where(
    write: Write, load: Load, source: str, message: str, where: str | None
) -> None:
    """One error class with the original as cause. Nothing stays loaded."""
    with pytest.raises(UserCodeLoadError, match=message) as caught:
        load(write(source))
    if where is not None:
        assert where == caught.value.where
        assert where in str(caught.value)


@pytest.mark.parametrize(
    "files",
    [{}, {"other": "class Preprocess: pass"}, {"__init__": "x = 1", "preprocess": "y = 2"}],
)
def test_folder_without_the_class_is_refused(write: Write, load: Load, files: dict[str, str]) -> None:
    """No folder, neither of two files, the class in none of them."""
    with pytest.raises(UserCodeLoadError, match="expected a file that defines `class Preprocess:`"):
        load(write(**files))


# --- folders ----------------------------------------------------------------------------------------------------------

SAYS = "class Preprocess:\n    def process(self, data, state):\n        return {}\n"


@pytest.mark.parametrize(
    "files",
    [
        {"__init__": SAYS.format("'here'")},
        {"preprocess": SAYS.format("'here'")},
        {"__init__": "", "preprocess": SAYS.format("'here'")},
        {"__init__": "from .preprocess import Preprocess", "preprocess": SAYS.format("'here'")},
        {"__init__": SAYS.format("'here'"), "preprocess": SAYS.format("'wrong'")},
    ],
)
def test_class_is_found_in_the_package_then_in_preprocess(write: Write, load: Load, files: dict[str, str]) -> None:
    """In `__init__.py`, as in clearml-serving, then in `preprocess.py`."""
    assert "here" == load(write(**files)).process({}, {}, None)


@pytest.mark.parametrize("entry", ["__init__", "preprocess"])
@pytest.mark.parametrize("late", [False, True])
def test_files_of_a_folder_import_each_other(write: Write, load: Load, entry: str, late: bool) -> None:
    """Relatively, at the top or in a hook, in packages with and without `__init__.py`."""
    statements = "from .parts import one; from . import parts; from .deep.inner import two; from .bare import leaf"
    top, inside = ("pass", statements) if late else (statements, "pass")
    files = {
        entry: f"{top}\nclass Preprocess:\n    def process(self, data, state):\n        {inside}\n"
        "        return one + two + parts.three + leaf.four\n",
        "parts": "one, two, three, four = 'abcd'",
        "deep______init__": "",
        "deep___inner": "from ..parts import two",
        "bare___leaf": "from ..parts import four",
    }
    assert "abcd" == load(write(**files)).process({}, {}, None)


def test_endpoints_with_the_same_file_names_do_not_mix(write: Write, load: Load) -> None:
    """Two folders with a utils.py each are loaded together and import it early and late."""
    source = "from .utils import word\n" + SAYS.format("(word, late())")
    source += "\ndef late():\n    from . import utils\n    return utils.word\n"
    codes = [load(write(folder=f, preprocess=source, utils=f"word = '{f}'"), name="same") for f in ("one", "two")]
    assert [("one",) * 2, ("two",) * 2] == [code.process({}, {}, None) for code in codes]
    assert "utils" not in sys.modules, "and code in use survives that another is loaded"


def test_changed_code_is_read_again(write: Write, load: Load) -> None:
    """Even in the same second and with the same size, for which bytecode files would be reused."""
    for word in ("one", "two", "six"):
        path = write(preprocess="from .utils import word\n" + SAYS.format("word"), utils=f"word = '{word}'")
        assert word == load(path).process({}, {}, None)
    assert [] == list(path.rglob("*.pyc"))


def test_classes_of_user_code_find_their_module(write: Write, load: Load) -> None:
    """Dataclasses, enums and pickle look it up by name, and `__file__` is the real one."""
    source = """
        import dataclasses, enum, pathlib, pickle
        class Kind(enum.Enum):
            A = 1
        @dataclasses.dataclass
        class Row:
            kind: "Kind"
        class Preprocess:
            def process(self, data, state):
                assert pickle.loads(pickle.dumps(Row(Kind.A))) == Row(Kind.A)
                return pathlib.Path(__file__).name
    """
    assert "preprocess.py" == load(write(source)).process({}, {}, None)


@pytest.mark.parametrize(
    "source", ["def unload(self): 1 / 0", "def unload(self): raise SystemExit", "async def unload(self): pass"]
)
def test_an_exception_of_unload_is_raised_after_the_unloading(write: Write, load: Load, source: str) -> None:
    """The endpoint is removed in any case."""
    before = set(sys.modules)
    code = load(write(f"class Preprocess:\n    {source}"))
    with pytest.raises(UserCodeFailed) as caught:
        code.unload()
    assert "unload" == caught.value.stage
    code.unload()  # a second one has no effect
    assert not [name for name in set(sys.modules) - before if name.startswith("_user_code_")]

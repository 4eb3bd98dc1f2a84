from __future__ import annotations

import asyncio
import inspect
import sys
import textwrap
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from preprocessing.errors import UserCodeError, UserCodeFailed, UserCodeLoadError, UserCodeRefused
from preprocessing.user_code import STAGES, UserCode

Load = Callable[..., UserCode]


@pytest.fixture
def load(tmp_path: Path) -> Iterator[Load]:
    """Write a file, or a folder of files by their names, and load it. At the end it is unloaded, and nothing of it
    stays in the interpreter.
    """
    loaded: list[UserCode] = []
    modules, path = set(sys.modules), list(sys.path)

    def load(source: str | Mapping[str, str], *, folder: str = "code", **options: Any) -> UserCode:
        place = tmp_path / ("preprocess.py" if isinstance(source, str) else folder)
        for name, text in ({"": source} if isinstance(source, str) else source).items():
            file = place / f"{name}.py" if name else place
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(textwrap.dedent(text))
        endpoint = SimpleNamespace(serving_url="minilm", version="1")
        options = {"name": "minilm/1", "endpoint": endpoint, "send_request": lambda *_: None, **options}
        loaded.append(UserCode.load(place, **options))
        return loaded[-1]

    yield load
    for code in loaded:
        code.unload()
    assert path == sys.path
    assert [] == [name for name in set(sys.modules) - modules if name.startswith("_user_code_")]


CLEARML_EXAMPLE = """
    from typing import Any, Callable, Optional
    import dataclasses, enum, pathlib, pickle
    import numpy as np

    class Kind(enum.Enum):
        A = 1

    @dataclasses.dataclass
    class Row:
        kind: "Kind"

    class Preprocess(object):
        def preprocess(self, body: dict, state: dict,
                       collect_custom_statistics_fn: Optional[Callable[[dict], None]] = None) -> Any:
            state["seen"] = body["x0"]
            if collect_custom_statistics_fn:
                collect_custom_statistics_fn({"x0": body["x0"]})
            return [[body.get("x0", None), body.get("x1", None)], ]

        def postprocess(self, data: Any, state: dict,
                        collect_custom_statistics_fn: Optional[Callable[[dict], None]] = None) -> dict:
            assert pickle.loads(pickle.dumps(Row(Kind.A))) == Row(Kind.A)
            assert pathlib.Path(__file__).name == "preprocess.py"
            return dict(y=data.tolist() if isinstance(data, np.ndarray) else data, seen=state["seen"])
"""


def test_clearml_example_runs_unchanged(load: Load) -> None:
    """A class of clearml-serving's own examples, with its types and statistics. Dataclasses, enums and pickle find
    their module by its name, and `__file__` is the real one.
    """
    code, state, seen = load(CLEARML_EXAMPLE), {}, []
    assert [[1, 2]] == code.preprocess({"x0": 1, "x1": 2}, state, seen.append)
    assert {"y": 3, "seen": 1} == code.postprocess(3, state, seen.append)
    assert [{"x0": 1}] == seen
    assert ["preprocess", "postprocess"] == code.stages
    missing = load("class Preprocess:\n    process = None")  # what is missing or cannot be called passes its data on
    assert [] == missing.stages
    assert [(False, 1)] * 3 == [(missing.is_async(stage), getattr(missing, stage)(1, {}, None)) for stage in STAGES]


def test_the_object_knows_model_and_endpoint_and_reaches_other_endpoints(load: Load, tmp_path: Path) -> None:
    """With clearml-serving's signatures: the path is a text, or None without a model. All callable attributes are
    hooks.
    """
    source = """
        class Preprocess:
            def load(self, file):
                return self.model_endpoint.serving_url, file
            @classmethod
            def process(cls, data, state, collect_custom_statistics_fn=None):
                return [cls().send_request("a"), cls().send_request(endpoint="b", version="2", data=data)]
            postprocess = len
    """
    code = load(source, model_path=tmp_path, send_request=lambda *arguments: arguments)
    assert [("a", None, None), ("b", "2", {"x": 1})] == code.process({"x": 1}, {}, None)
    assert 1 == code.postprocess({"x": 1}, {}, None)
    assert [("minilm", str(tmp_path)), ("minilm", None)] == [code.model, load(source).model]


# --- signatures -------------------------------------------------------------------------------------------------------

SIGNATURES = {
    "body": 1, "body, s": 2, "body, /, state": 2, "body, state, threshold=0.5": 3, "a, b, c, d=4": 3, "*args": 3,
    "body, *args": 3, "body, state, collect_custom_statistics_fn=None, **kwargs": 3,
}  # fmt: skip
"""Parameters → how many of data, state and function they get."""


@pytest.mark.parametrize("parameters", SIGNATURES)
@pytest.mark.parametrize("prefix", ["", "async "])
async def test_hooks_may_take_fewer_arguments(load: Load, parameters: str, prefix: str) -> None:
    """By position, as in clearml-serving; the last ones may be left out."""
    body = "return [v for v in flatten(list(locals().values())) if v in ('data', 'state', 'fn')]"
    flat = "flatten = lambda vs: [x for v in vs for x in (v if isinstance(v, tuple) else [v])]"
    code = load(f"{flat}\nclass Preprocess:\n    {prefix}def process(self, {parameters}):\n        {body}")
    result = code.process("data", "state", "fn")
    expected = ["data", "state", "fn"][: SIGNATURES[parameters]]
    assert expected == (await result if inspect.isawaitable(result) else result)


# --- async ------------------------------------------------------------------------------------------------------------


async def test_async_hooks_are_known_and_awaited(load: Load) -> None:
    """The gateway awaits them and runs the others in threads."""
    source = """
        import functools
        class Preprocess:
            async def preprocess(self, body, state, collect_custom_statistics_fn=None): return body + 1
            def process(self, data, state): return self.preprocess(data, state)
            postprocess = functools.partialmethod(preprocess)
    """
    code = load(source)
    assert [True, False, True] == [code.is_async(stage) for stage in STAGES]
    assert [2, 2] == [await code.preprocess(1, {}, None), await code.process(1, {}, None)]


async def test_cancellation_reaches_an_async_hook_and_its_caller(load: Load) -> None:
    """A client that leaves ends the hook, which does not count as a failure. A hook's own cancellation is one: the
    request was not cancelled, so it must be answered.
    """
    source = """
        import asyncio
        class Preprocess:
            async def preprocess(self, data, state):
                try:
                    await asyncio.sleep(60)
                finally:
                    data.append("cleaned up")
            async def process(self, data, state): raise asyncio.CancelledError
            def postprocess(self, data, state): raise asyncio.CancelledError
    """
    code, events = load(source), []
    task = asyncio.create_task(code.preprocess(events, {}, None))
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert ["cleaned up"] == events
    for stage in ("process", "postprocess"):
        assert "CancelledError" in str(await raised(code, stage))


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
    with pytest.raises(UserCodeError) as caught:
        await getattr(code, stage)({}, {}, None)
    return caught.value


REFUSALS = {
    "ValueError('x0 must be positive')": "x0 must be positive",
    "InvalidInput('x0 must be positive', field='x0')": "x0 must be positive",
    "ValueError()": "{stage} refused the request",  # an empty text would not help
}
FAILURES = "KeyError('x0')", "RuntimeError()", "SystemExit(3)", "KeyboardInterrupt()", "Rude()", "BaseException('b')"


@pytest.mark.parametrize("stage", STAGES)
@pytest.mark.parametrize("error", [*REFUSALS, *FAILURES])
async def test_what_a_hook_raises_refuses_the_request_or_is_its_failure(load: Load, stage: str, error: str) -> None:
    """No exception of a hook ends a process. A failure's original and its position are kept."""
    caught, name = await raised(load(RAISING.format(error=error)), stage), error.partition("(")[0]
    assert (stage, "preprocess.py:7" if stage == "preprocess" else "preprocess.py:9") == (caught.stage, caught.where)
    if error in REFUSALS:
        assert isinstance(caught, UserCodeRefused)
        assert REFUSALS[error].format(stage=stage) == str(caught).partition(" (")[0]
        return
    assert isinstance(caught, UserCodeFailed)
    assert caught.__cause__ is caught.original
    assert name == type(caught.original).__name__
    assert f"{stage} raised {name}" in str(caught)
    assert caught.where in str(caught)


def test_failure_in_a_library_is_located_in_the_users_code(load: Load) -> None:
    """At the line that its author can change, not inside the library."""
    go = "from . import parts\nclass Preprocess:\n  def process(self, data):\n    return parts.go(data)\n"
    code = load({"preprocess": go, "parts": "import json\n\ndef go(x):\n    return json.dumps(x)\n"})
    with pytest.raises(UserCodeFailed, match="TypeError") as caught:
        code.process({1j}, {}, None)
    assert "parts.py:4" == caught.value.where


# --- what loading raises ----------------------------------------------------------------------------------------------

SKELETON = "expected a file that defines `class Preprocess:`"
UNLOADABLE: dict[str | tuple[tuple[str, str], ...], tuple[str, str | None]] = {
    "x = 1\nclass Preprocess:\n  def f(self:\n    pass": ("SyntaxError", "preprocess.py:3"),
    "import no_such_module_anywhere": ("from .no_such_module_anywhere import …", "preprocess.py:1"),
    "\n\n1 / 0": ("ZeroDivisionError", "preprocess.py:3"),
    "import sys\nsys.exit(1)": ("SystemExit", "preprocess.py:2"),
    "x = 1": ("defines no class Preprocess", None),
    "def Preprocess(): pass": ("is not a class", None),
    "class Preprocess:\n  def __init__(self): raise OSError('no GPU')": ("OSError: no GPU", "preprocess.py:2"),
    "class Preprocess:\n  __slots__ = ()": ("model_endpoint", None),
    "class Preprocess:\n  async def load(self, p): pass": ("load is an async function", None),
    "class Preprocess:\n  @property\n  def process(self): 1 / 0": ("ZeroDivisionError", "preprocess.py:3"),
    "\x00": ("null bytes", None),
    # a hook that cannot be called, not found out by the first request; the message shows the right form
    **{f"class Preprocess:\n    def process({parameters}): pass": (
        r"process\(self, body, state, collect_custom_statistics_fn\)", None,
    ) for parameters in (
        "self", "self, a, b, c, d", "self, a, *, needed", "body, state, collect_custom_statistics_fn",
        "self, body, collect_custom_statistics_fn=None",
    )},
    # no folder, neither of two files, the class in none of them
    (): (SKELETON, None),
    (("__init__", "x = 1"), ("preprocess", "y = 2")): (SKELETON, None),
}  # fmt: skip
"""The file, or those of a folder → what is said, and the place."""


@pytest.mark.parametrize("source", UNLOADABLE, ids=range(len(UNLOADABLE)))
def test_code_that_cannot_be_loaded_says_why_and_where(load: Load, source: Any) -> None:
    """One error class with the original as cause. Nothing stays loaded."""
    message, where = UNLOADABLE[source]
    with pytest.raises(UserCodeLoadError, match=message) as caught:
        load(source if isinstance(source, str) else dict(source))
    if where is not None:
        assert where == caught.value.where
        assert where in str(caught.value)


# --- folders ----------------------------------------------------------------------------------------------------------

SAYS = "class Preprocess:\n    def process(self, data, state):\n        return {}\n"
HERE = SAYS.format("'here'")


FOLDERS = [
    {"__init__": HERE}, {"preprocess": HERE}, {"__init__": "", "preprocess": HERE},
    {"__init__": "from .preprocess import Preprocess", "preprocess": HERE},
    {"__init__": HERE, "preprocess": SAYS.format("'wrong'")},
]  # fmt: skip


@pytest.mark.parametrize("files", FOLDERS)
def test_class_is_found_in_the_package_then_in_preprocess(load: Load, files: dict[str, str]) -> None:
    """In `__init__.py`, as in clearml-serving, then in `preprocess.py`."""
    assert "here" == load(files).process({}, {}, None)


@pytest.mark.parametrize("entry", ["__init__", "preprocess"])
@pytest.mark.parametrize("late", [False, True])
def test_files_of_a_folder_import_each_other(load: Load, entry: str, late: bool) -> None:
    """Relatively, at the top or in a hook, in packages with and without `__init__.py`."""
    statements = "from .parts import one; from . import parts; from .deep.inner import two; from .bare import leaf"
    top, inside = ("pass", statements) if late else (statements, "pass")
    files = {
        entry: f"{top}\nclass Preprocess:\n    def process(self, data, state):\n        {inside}\n"
        "        return one + two + parts.three + leaf.four\n",
        "parts": "one, two, three, four = 'abcd'",
        "deep/__init__": "",
        "deep/inner": "from ..parts import two",
        "bare/leaf": "from ..parts import four",
    }
    assert "abcd" == load(files).process({}, {}, None)


def test_code_does_not_mix_and_is_read_again(load: Load, tmp_path: Path) -> None:
    """Folders with a utils.py each are loaded together and import it early and late. Changed code is read even in the
    same second and with the same size, for which bytecode files would be reused.
    """
    source = "from .utils import word\n" + SAYS.format("(word, late())")
    source += "\ndef late():\n    from . import utils\n    return utils.word\n"
    codes = [load({"preprocess": source, "utils": f"word = '{one}'"}, folder=one, name="same") for one in "ab"]
    assert [("a", "a"), ("b", "b")] == [code.process({}, {}, None) for code in codes]
    assert "utils" not in sys.modules, "and code in use survives that another is loaded"
    for word in "cde":
        changed = load({"preprocess": source, "utils": f"word = '{word}'"}, folder="a")
        assert (word, word) == changed.process({}, {}, None)
    assert [] == list(tmp_path.rglob("*.pyc"))


@pytest.mark.parametrize("source", ["def unload(self): raise SystemExit", "async def unload(self): pass"])
def test_an_exception_of_unload_is_raised_after_the_unloading(load: Load, source: str) -> None:
    """The endpoint is removed in any case; a second call, at the end, has no effect."""
    with pytest.raises(UserCodeFailed) as caught:
        load(f"class Preprocess:\n    {source}").unload()
    assert "unload" == caught.value.stage

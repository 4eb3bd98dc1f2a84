"""Text of others as file names: whatever it is, the file stays in its folder, and two texts are two files."""

from __future__ import annotations

from pathlib import Path, PurePosixPath, PureWindowsPath

from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from gateway.file_names import file_name, path_within

PARTS = ("..", "/", "\\", "\0", ".", " ", "é", "x", ".py", ":", "~", "-", "\ud800", "n" * 150)
NAMES = st.one_of(
    st.text(st.characters(), max_size=40), st.lists(st.sampled_from(PARTS), max_size=9).map("".join)
)  # fmt: skip
ORDINARY = ["model.onnx", "weights #1.onnx", "__init__.py", "ร้าน.py", "a" * 200, "v1.2 (final).tar.gz", "файл.bin"]
HOSTILE = ("", ".", "..", "../x", "/etc/x", "a/b", "a\\b", "\0", "n" * 300, "é" * 200, "x.", " ", "\ud800")


@settings(max_examples=50, suppress_health_check=list(HealthCheck))
@given(text=NAMES, other=NAMES)
@example(text="../../../escaped.txt", other="..-..-..-escaped.txt")
@example(text="a/b", other="a-b")
@example(text="\ud800", other="\ud801")
def test_any_text_names_one_file_of_a_folder(tmp_path: Path, text: str, other: str) -> None:
    """On any system; an ordinary name stays as it is, as does the name of a name, and another text has another."""
    assert ORDINARY == [file_name(name) for name in ORDINARY]
    for one in (text, *HOSTILE):
        name = file_name(one)
        (tmp_path / name).write_text("x")
        assert name == file_name(name)
        assert len(name.encode()) <= 200
        assert (name,) == PurePosixPath(name).parts == PureWindowsPath(name).parts
        assert name == name.strip(". ")
    assert {*tmp_path.iterdir()} == {path for path in tmp_path.rglob("*") if path.is_file()}
    assert (text == other) == (file_name(text) == file_name(other))


@settings(max_examples=50)
@given(text=NAMES)
def test_a_path_stays_below_its_folder_or_is_refused(text: str) -> None:
    """With the reason."""
    root = PurePosixPath("/a/b")
    refusal = ""
    try:
        path = path_within(text)
    except ValueError as error:
        path, refusal = PurePosixPath(), str(error)
    assert (root / path).is_relative_to(root)
    assert ".." not in path.parts
    assert b"\0" not in str(path).encode()
    assert bool(path.parts) != refusal.startswith(("the unsafe path", "a name that"))

from __future__ import annotations

from preprocessing import errors
from preprocessing.errors import InvalidInput, PreprocessingError


def test_every_error_is_a_preprocessing_error() -> None:
    """A caller that catches the base misses none."""
    classes = [value for value in vars(errors).values() if isinstance(value, type)]
    assert [] == [c for c in classes if not issubclass(c, PreprocessingError)]


def test_the_drawing_of_the_tree_names_every_error() -> None:
    """The module's docstring is the map of the tree."""
    names = {name for name, value in vars(errors).items() if isinstance(value, type)}
    assert set() == {name for name in names if name not in (errors.__doc__ or "")}


def test_text_of_an_error_ends_with_its_hint() -> None:
    """Whoever only prints the error still sees what to do."""
    assert "text is empty (send some)" == str(InvalidInput("text is empty", field="text", hint="send some"))
    assert "text is empty" == str(InvalidInput("text is empty"))

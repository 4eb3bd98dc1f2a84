from __future__ import annotations

from preprocessing import errors
from preprocessing.errors import InvalidInput, PreprocessingError


def test_every_error_is_a_preprocessing_error() -> None:
    """Catching the base class catches all of them."""
    classes = [value for value in vars(errors).values() if isinstance(value, type)]
    assert [] == [c for c in classes if not issubclass(c, PreprocessingError)]


def test_the_drawing_of_the_tree_names_every_error() -> None:
    """The tree is in the module's docstring."""
    names = {name for name, value in vars(errors).items() if isinstance(value, type)}
    assert set() == {name for name in names if name not in (errors.__doc__ or "")}


def test_text_of_an_error_ends_with_its_hint() -> None:
    """So that printing the error shows the hint."""
    assert "text is empty (send some)" == str(InvalidInput("text is empty", field="text", hint="send some"))
    assert "text is empty" == str(InvalidInput("text is empty"))

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from preprocessing.config import TaskConfig
from preprocessing.errors import InvalidBundle, InvalidInput, InvalidOutput
from preprocessing.heads.base import Head, parse_texts

CONFIG = TaskConfig(task="text-classification", max_rows=3, max_chars=10)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=12) | st.binary(max_size=3),
    lambda inner: (
        st.lists(inner, max_size=5)
        | st.dictionaries(st.sampled_from(["text", "text_pair", "parameters", "inputs", "x"]), inner, max_size=4)
    ),
    max_leaves=12,
)


def refusal(body: object, *, pairs: bool = True) -> InvalidInput:
    """Return the error of parsing this body."""
    with pytest.raises(InvalidInput) as caught:
        parse_texts(body, CONFIG, pairs=pairs)
    return caught.value


@pytest.mark.parametrize(
    ("body", "texts", "is_batch"),
    [
        ({"text": "a"}, ["a"], False),
        ({"text": ["a"]}, ["a"], True),
        ({"text": ["a", "b"]}, ["a", "b"], True),
        ({"text": "a", "text_pair": "b"}, [("a", "b")], False),
        ({"text": "a", "text_pair": None, "parameters": None}, ["a"], False),
        ({"text": ["a", "c"], "text_pair": ["b", "d"]}, [("a", "b"), ("c", "d")], True),
        ({"text": "\x00"}, ["\x00"], False),
        ({"text": "\U0001f600 שלום 中"}, ["\U0001f600 שלום 中"], False),
    ],
)
def test_forms_of_a_request(body: object, texts: list[Any], is_batch: bool) -> None:
    """A list stays a list, whatever its length."""
    assert (texts, is_batch, {}) == parse_texts(body, CONFIG, pairs=True)


@pytest.mark.parametrize(
    ("body", "said"),
    [
        *(
            (body, f"The request body must be an object, not {word} (send {{\"text\": \"…\"}}")
            for body, word in (
                (None, "null"), ("a", "a string"), (["a"], "a list"), (3, "a number"), (True, "a boolean"),
                (b"a", "raw bytes"),
            )
        ),
        ({}, "The field text is missing"),
        ({"inputs": "a"}, "rename it to text"),
        ({"text": "a", "parameter": {}}, "Unknown field parameter (known are text, text_pair, parameters)"),
        # a quoted name cannot break or bloat a log line
        ({"text": "a", "\n" * 1000: 1}, "Unknown field " + "\\n" * 20 + " ("),
        ({"text": []}, "text is an empty list"),
        ({"text": ["a"] * 4}, "The request makes 4 rows, at most 3 are taken at once"),
        ({"text": "x" * 11}, "text has 11 characters, at most 10 are taken"),
        # the tokenizers library's form is a common first try
        ({"text": [["a", "b"]]}, "text_pair"),
    ],
    ids=range(14),
)  # fmt: skip
def test_a_body_that_is_not_taken_is_refused_with_what_is_wrong(body: object, said: str) -> None:
    """And with the right form or the limit; the text itself is not in the message."""
    assert said in str(refusal(body))


@pytest.mark.parametrize("value", [None, 3, 1.5, True, {"text": "a"}])
def test_text_of_another_type_is_refused(value: object) -> None:
    """Alone or in a list. The error names the field."""
    assert "text" == refusal({"text": value}).field
    assert "text[1]" == refusal({"text": ["a", value]}).field


@pytest.mark.parametrize("value", ["", " ", "\n\t", "\u3000", "\xa0"])
def test_empty_text_is_refused(value: str) -> None:
    """White space of any script counts as empty."""
    assert "text is empty" == refusal({"text": value}).message
    assert "text[2] is empty" == refusal({"text": ["a", "b", value]}).message
    assert "text_pair is empty" == refusal({"text": "a", "text_pair": value}).message


@pytest.mark.parametrize("text", ["\ud800", "a\udfff", "\udc00\ud800"])
def test_half_a_surrogate_pair_is_refused(text: str) -> None:
    """It has no UTF-8 form, and the tokenizer's own error would be unclear."""
    assert "half a surrogate pair" in refusal({"text": text}).message
    assert "text_pair[0]" == refusal({"text": ["a"], "text_pair": [text]}).field


@pytest.mark.parametrize(
    "body",
    [
        {"text": ["a", "b"], "text_pair": ["c"]},
        {"text": ["a"], "text_pair": "c"},
        {"text": "a", "text_pair": ["c"]},
        {"text": "a", "text_pair": 3},
        {"text": [["a", "b"]]},
        {"text": [{"text": "a", "text_pair": "b"}]},
        {"text": ["b", {"text": "a"}]},
        {"text": "a", "parameters": []},
        {"text": "a", "parameters": "top"},
    ],
)
def test_mixed_and_nested_forms_are_refused(body: object) -> None:
    """One request has one form."""
    assert refusal(body).message


def test_a_task_of_single_texts_refuses_pairs() -> None:
    """In every form."""
    assert "This task takes single texts" == refusal({"text": "a", "text_pair": "b"}, pairs=False).message
    assert "text[0]" == refusal({"text": [{"text": "a", "text_pair": "b"}]}, pairs=False).field


@given(JSON)
def test_any_body_is_parsed_or_refused(body: object) -> None:
    """No body raises another error, and every parsed one can be encoded."""
    try:
        texts, _, parameters = parse_texts(body, CONFIG, pairs=True)
    except InvalidInput:
        return
    assert 1 <= len(texts) <= 3
    assert isinstance(parameters, dict)
    for text in texts:
        for part in (text,) if isinstance(text, str) else text:
            assert part.strip()
            assert part.encode("utf-8")


class Some(Head):
    """A head whose output has one of two names."""

    task = "t"
    outputs = ("x", "b")


def test_preferred_output_wins_then_the_only_one() -> None:
    """Exporters use different names. With two unknown names, a guess would be unsafe."""
    assert ("b",) == Some().select_outputs(["a", "b"])
    assert ("x",) == Some().select_outputs(["b", "x"])
    assert ("output_0",) == Some().select_outputs(["output_0"])
    with pytest.raises(InvalidBundle, match="a, c"):
        Some().select_outputs(["a", "c"])
    with pytest.raises(InvalidBundle, match="none"):
        Some().select_outputs([])


@pytest.mark.parametrize("outputs", [{}, {"a": 1, "c": 2}])
def test_outputs_without_the_wanted_one_are_refused(outputs: dict[str, Any]) -> None:
    """The message names the actual and the expected outputs."""
    with pytest.raises(InvalidOutput, match="expected x or b"):
        Some().take(outputs)

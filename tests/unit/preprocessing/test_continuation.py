"""Streamed text of generated tokens: sent parts are final, and together they are the whole text."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from preprocessing.continuation import Continuation


class Bytes:
    """A tokenizer of bytes: a character may take four tokens. 256 is a special token."""

    def decode(self, ids: Sequence[int], *, skip_special_tokens: bool = False) -> str:
        assert skip_special_tokens
        return bytes(id_ for id_ in ids if id_ < 256).decode("utf-8", "replace")


TEXT = st.text(max_size=30)


def parts_of(text: str, prompt: str = "", stop: Sequence[str] = ()) -> tuple[list[str], bool]:
    """Return the parts of a text until it stops."""
    made = Continuation(Bytes(), list(prompt.encode()), stop)
    parts = []
    for token in text.encode():
        parts.append(made.push(token))
        if made.has_stopped:
            return parts, True
    return [*parts, made.rest()], made.has_stopped


@given(TEXT, TEXT)
def test_parts_join_to_the_whole_text(prompt: str, text: str) -> None:
    """For any prompt. No part has an incomplete character."""
    parts, _ = parts_of(text, prompt)
    assert text == "".join(parts)
    assert all("\ufffd" not in part or "\ufffd" in text for part in parts)


@given(st.text("abc", max_size=20), st.lists(st.text("abc", min_size=1, max_size=4), min_size=1, max_size=3))
def test_text_ends_in_front_of_the_first_stop_string(text: str, stop: list[str]) -> None:
    """Without one it is whole. No part is ever taken back."""
    parts, has_stopped = parts_of(text, stop=stop)
    # The first that is complete counts: a longer one that began earlier may still be on its way.
    ends = [(text.find(s) + len(s), text.find(s)) for s in stop if s in text]
    assert bool(ends) == has_stopped
    expected = text[: min(at for end, at in ends if end == min(ends)[0])] if ends else text
    assert expected == "".join(parts)


def test_tokens_without_text_delay_nothing_and_unfinished_characters_come_with_the_rest() -> None:
    """As if all tokens were decoded at once."""
    made = Continuation(Bytes(), [])
    assert ["", "", "a", ""] == [made.push(token) for token in (256, 256, 97, 0xE4)]
    assert "\ufffd" == made.rest()

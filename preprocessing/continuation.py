"""Turns generated tokens into text, one by one; `Continuation` returns only text that later tokens cannot change."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from preprocessing.tokenizer import TextTokenizer

_CONTEXT: Final = 5
_BROKEN: Final = "\ufffd"


class Continuation:
    """One text that is being generated after `prompt` (token ids).

    `push` takes a token and returns the text that is final by now. A character of several tokens waits for its last
    one, and a possible beginning of a stop string waits until it is decided. All parts, with `rest()` at the end, join
    to the decoding of all tokens after the prompt. Stop strings are not part of the text.
    """

    def __init__(self, decoder: TextTokenizer, prompt: Sequence[int], stop: Sequence[str] = ()) -> None:
        self._decoder = decoder
        # Some decoders drop the space before a first word, so ids are decoded together with the prompt's end.
        self._ids = list(prompt[-_CONTEXT:])
        self._from, self._read = 0, len(self._ids)
        self._stop = tuple(stop)
        self._held = ""
        self.has_stopped = False
        """Whether a stop string has occurred; later tokens are ignored."""

    def push(self, token: int) -> str:
        """Return the text that this token makes final: often a word, sometimes nothing."""
        self._ids.append(token)
        known, text = self._texts()
        if len(text) <= len(known) or text.endswith(_BROKEN):
            return ""
        self._from, self._read = self._read, len(self._ids)
        return self._checked(text[len(known) :])

    def rest(self) -> str:
        """Return the text that was held back, if no further token comes."""
        if self.has_stopped:
            return ""
        known, text = self._texts()
        self._from = self._read = len(self._ids)
        certain = self._checked(text[len(known) :])
        held, self._held = self._held, ""
        return certain + ("" if self.has_stopped else held)

    def _texts(self) -> tuple[str, str]:
        decode = self._decoder.decode
        return (
            decode(self._ids[self._from : self._read], skip_special_tokens=True),
            decode(self._ids[self._from :], skip_special_tokens=True),
        )

    def _checked(self, text: str) -> str:
        if not self._stop:
            return text
        text = self._held + text
        found = [at for at in (text.find(stop) for stop in self._stop) if at >= 0]
        if found:
            self.has_stopped = True
            self._held = ""
            return text[: min(found)]
        kept = max((_overlap(text, stop) for stop in self._stop), default=0)
        self._held = text[len(text) - kept :]
        return text[: len(text) - kept]


def _overlap(text: str, stop: str) -> int:
    """Return how many of the text's last characters could begin the stop string."""
    for size in range(min(len(text), len(stop) - 1), 0, -1):
        if text.endswith(stop[:size]):
            return size
    return 0

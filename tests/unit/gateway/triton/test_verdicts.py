"""A reason goes through Triton's index and comes out as it went in."""

from __future__ import annotations

import pytest

from gateway.triton.verdicts import Verdict, config, decode, encode

TOLD = "Invalid argument: unable to find backend library for backend '{}', try specifying runtime on the model config."


@pytest.mark.parametrize("is_final", [True, False])
@pytest.mark.parametrize(
    "reason",
    [
        "model m1 (a) holds no files; upload it again",
        'http://files/a%20b.zip: it\'s "away"',
        "größer als ../../etc",
        "",
    ],
)
def test_a_verdict_survives_triton(reason: str, is_final: bool) -> None:
    """Quotes, slashes and other alphabets included."""
    text = config("m", Verdict(reason, is_final))
    backend = text.partition('backend: "')[2].rstrip('\n"')
    assert not set("/'\"\\\n") & set(backend)
    assert Verdict(reason, is_final) == decode(TOLD.format(backend))


def test_a_verdict_is_one_line_of_bounded_length() -> None:
    """It is a name in a file and in a log."""
    verdict = decode(encode(Verdict("a\n b\x1b[31m" + "x" * 5000, is_final=True)))
    assert verdict is not None
    assert (500, "a b [31mxx") == (len(verdict.reason), verdict.reason[:10])


def test_what_triton_says_itself_is_no_verdict() -> None:
    """It stays Triton's word."""
    assert decode("unable to find backend library for backend 'onnxruntime', try …") is None

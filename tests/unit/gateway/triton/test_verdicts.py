"""A reason of model sync passes unchanged through Triton's index."""

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
def test_a_verdict_passes_triton_unchanged(reason: str, is_final: bool) -> None:
    """Including quotes, slashes and other alphabets."""
    text = config("m", Verdict(reason, is_final))
    backend = text.partition('backend: "')[2].rstrip('\n"')
    assert not set("/'\"\\\n") & set(backend)
    assert Verdict(reason, is_final) == decode(TOLD.format(backend))


def test_a_verdict_is_one_line_of_bounded_length() -> None:
    """It is a file name and a part of a log line."""
    verdict = decode(encode(Verdict("a\n b\x1b[31m" + "x" * 5000, is_final=True)))
    assert verdict is not None
    assert (500, "a b [31mxx") == (len(verdict.reason), verdict.reason[:10])


def test_tritons_own_reasons_are_not_verdicts() -> None:
    """They are kept unchanged."""
    assert decode("unable to find backend library for backend 'onnxruntime', try …") is None

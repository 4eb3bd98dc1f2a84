"""Validates a new version before it gets traffic: warm-up requests, and the samples of its bundle.

``assemble`` calls this on handlers that nothing else uses yet. A failure here keeps the new version out of service; the
version that serves continues.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import orjson

from gateway.errors import AnswersDisagree, GatewayError, InputRefused
from gateway.handlers.endpoint import Endpoint, Handler, Identity, ask_version
from gateway.hooks.json_form import plain
from gateway.samples import Samples, difference

TEXT_BODIES: Final = ({"text": "warm up"}, {"text": ["warm up", "a longer text to warm up with, in two rows"]})

_MAX_SHOWN: Final = 4096
"""Largest sample (bytes of JSON) that is shown as an example."""
TIMEOUT_S: Final = 60.0
"""Deadline of one validation request."""
_NOBODY: Final = Identity("", "", "")


async def warm_up(handler: Handler, bodies: Sequence[object]) -> None:
    """Send each body; one that is refused as invalid input counts as answered. Raises ``GatewayError``."""
    for body in bodies:
        try:
            await _answer(handler, body)
        except InputRefused:
            continue  # an endpoint may refuse long texts or lists
        except GatewayError as error:
            raise type(error)(f"warm-up failed: {error.message}", hint=error.hint) from error


async def check(handler: Handler, samples: Samples) -> None:
    """Send a bundle's samples and compare the answers. Raises ``AnswersDisagree``, or the error of a failed sample."""
    for number, sample in enumerate(samples.samples):
        try:
            answer = await _answer(handler, sample.body)
        except GatewayError as error:
            raise type(error)(f"sample {number} of the bundle failed: {error.message}", hint=error.hint) from error
        if not sample.has_answer:
            continue
        try:
            values = plain(answer)
        except (TypeError, ValueError) as error:
            raise AnswersDisagree(f"sample {number} of the bundle has an answer that is not JSON: {error}") from error
        if found := difference(sample.answer, values, samples.tolerance):
            raise AnswersDisagree(
                f"sample {number} of the bundle: {found}",
                hint="the model, its files or this Triton are not what they were when the samples were recorded",
            )


def example(samples: Samples | None) -> dict[str, object]:
    """Return ``example``, the first sample of at most 4 KiB, for the documentation of a model without one of its own.

    Other models show their task's example, as a bundle's samples are chosen to find faults (a word, a cut text).
    """
    for sample in samples.samples if samples is not None else ():
        if len(orjson.dumps(sample.body)) <= _MAX_SHOWN:
            return {"example": sample.body}
    return {}


async def _answer(handler: Handler, body: object) -> object:
    return (await ask_version(Endpoint(_NOBODY, handler), body, TIMEOUT_S)).answer

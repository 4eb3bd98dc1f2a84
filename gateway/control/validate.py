"""Validates a new version before it gets traffic: warm-up requests, the bundle's samples, and recent requests.

``assemble`` calls this on handlers that nothing else uses yet. A failure here keeps the new version out of service; the
version that serves continues.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import orjson

from gateway.errors import AnswersDisagree, FailsOnRequests, GatewayError, InputRefused
from gateway.handlers.endpoint import Endpoint, Handler, Identity
from gateway.hooks.json_form import to_json
from gateway.path.serve import ask_version
from gateway.samples import Samples, difference

TEXT_BODIES: Final = ({"text": "warm up"}, {"text": ["warm up", "a longer text to warm up with, in two rows"]})

_MAX_SHOWN: Final = 4096
"""Largest sample (bytes of JSON) that is shown as an example."""
_SHOWN_ITEMS: Final = 4
"""A list of more than twice this many items is cut to this many in an example."""
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


async def replay(handler: Handler, seen: Sequence[bytes]) -> None:
    """Send bodies that were answered before; the answers are not compared. Raises ``FailsOnRequests``.

    A body that is refused as invalid input (``ValueError`` in a hook) is no failure: versions may change their input.
    """
    for raw in seen:
        try:
            body: object = orjson.loads(raw)
        except ValueError:
            body = raw
        try:
            await _answer(handler, body)
        except InputRefused:
            continue
        except GatewayError as error:
            raise FailsOnRequests(
                f"the last request that was answered fails with this version: {error.message}",
                hint="mend its code, or add the endpoint with --aux-config gateway.rehearse=false if requests "
                "look different from now on",
            ) from error


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
            plain = _json(answer)
        except (TypeError, ValueError) as error:
            raise AnswersDisagree(f"sample {number} of the bundle has an answer that is not JSON: {error}") from error
        if found := difference(sample.answer, plain, samples.tolerance):
            raise AnswersDisagree(
                f"sample {number} of the bundle: {found}",
                hint="the model, its files or this Triton are not what they were when the samples were recorded",
            )


async def example(
    handler: Handler, samples: Samples | None, details: Mapping[str, object], *, runs: bool = True
) -> dict[str, object]:
    """Return ``example`` and ``example_answer`` for the endpoint's documentation.

    The example is the task's own, as a bundle's samples are chosen to find faults (a word, a cut text, another script).
    Models without one show the bundle's first sample of at most 4 KiB. If ``runs``, the handler answers the example
    here; otherwise the recorded answer is used, if there is one. Long lists are cut.
    """
    body, answer = details.get("example"), None
    for sample in samples.samples if samples is not None and body is None else ():
        if len(orjson.dumps(sample.body)) <= _MAX_SHOWN:
            body, answer = sample.body, sample.answer if sample.has_answer else None
            break
    if body is None:
        return {}
    if runs:
        try:
            answer = _json(await _answer(handler, body))
        except (GatewayError, TypeError, ValueError):
            answer = None
    return {"example": body, **({} if answer is None else {"example_answer": _short(answer)})}


def _short(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _short(item) for name, item in value.items()}
    if isinstance(value, list):
        kept = value[:_SHOWN_ITEMS] if len(value) > 2 * _SHOWN_ITEMS else value
        return [_short(item) for item in kept]
    return value


async def _answer(handler: Handler, body: object) -> object:
    ask = await ask_version(Endpoint(_NOBODY, handler), body, TIMEOUT_S)
    return ask.reply


def _json(answer: object) -> Any:
    if isinstance(answer, bytes | bytearray | memoryview):
        return orjson.loads(answer)
    content = getattr(answer, "body", None)  # a hook may return a response object
    if isinstance(content, bytes):
        return orjson.loads(content)
    return orjson.loads(to_json(answer))

"""A version's first requests, before anybody's: warm-up, and the samples of its bundle with the answers they must give.

Called by ``assemble`` on handlers that nobody else knows yet. Whatever goes wrong here is a reason not to serve the
version; the one that is served goes on.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import orjson

from gateway.dataplane.asking import ask_version
from gateway.endpoints.endpoint import Endpoint, Handler, Identity
from gateway.errors import AnswersDisagree, FailsOnRequests, GatewayError, InputRefused
from gateway.hooks.wire import json_form
from gateway.samples import Samples, difference
from gateway.trace import Trace

TEXT_BODIES: Final = ({"text": "warm up"}, {"text": ["warm up", "a longer text to warm up with, in two rows"]})

_MAX_SHOWN: Final = 4096
_SHOWN_ITEMS: Final = 4
TIMEOUT_S: Final = 60.0
_NOBODY: Final = Identity("", "", "", "")
_OPTIONS: Final = orjson.OPT_SERIALIZE_NUMPY | orjson.OPT_NON_STR_KEYS


async def warm_up(handler: Handler, bodies: Sequence[object]) -> None:
    """Have every body answered; one that is refused as input is no failure. Raises ``GatewayError``."""
    for body in bodies:
        try:
            await _answer(handler, body)
        except InputRefused:
            continue  # an endpoint may refuse what is long or comes in lists
        except GatewayError as error:
            raise type(error)(f"warm-up failed: {error.message}", hint=error.hint) from error


async def answer_again(handler: Handler, seen: Sequence[bytes]) -> None:
    """Answer bodies that were answered before; what the answers are is not compared. Raises ``FailsOnRequests``.

    A body that is refused as input (``ValueError`` in a hook) is no failure: what a version takes may change.
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
    """Answer the samples of a bundle and compare. Raises ``AnswersDisagree``, or what a sample failed with."""
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


async def shown(
    handler: Handler, samples: Samples | None, details: Mapping[str, object], *, runs: bool = True
) -> dict[str, object]:
    """Return ``example`` and ``example_answer`` for the endpoint's documentation: the bundle's first small sample, else
    the task's own example; answered here if ``runs`` (else as recorded, if it was). Long lists of numbers are cut.
    """
    body, answer = details.get("example"), None
    for sample in samples.samples if samples is not None else ():
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
    return await ask_version(Endpoint(_NOBODY, handler), body, TIMEOUT_S, Trace("warm-up"))


def _json(answer: object) -> Any:
    if isinstance(answer, bytes | bytearray | memoryview):
        return orjson.loads(answer)
    content = getattr(answer, "body", None)  # a response object of a hook's own
    if isinstance(content, bytes):
        return orjson.loads(content)
    return orjson.loads(orjson.dumps(answer, default=json_form, option=_OPTIONS))

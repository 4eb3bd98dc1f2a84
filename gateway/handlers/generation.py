"""Text generation: turns the tokens that a decoupled model sends one by one into text, whole or in events.

The handler of text-generation endpoints; ``path.serve`` sends its pieces. Nothing is batched: the model
continues each text in a thread of its own (``deploy/sync/runtime/generate_model.py``).
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import aclosing
from dataclasses import dataclass
from time import perf_counter_ns
from typing import Any, Final

import numpy as np
import orjson

from gateway.errors import BackendGarbage, BackendRefused, InputRefused, ModelFailed
from gateway.handlers.endpoint import Event, note
from gateway.trace import Trace
from gateway.triton.port import Backend
from preprocessing.chat import Chat, TokenPrompts
from preprocessing.config import GENERATION
from preprocessing.continuation import Continuation
from preprocessing.heads.generation import TextGeneration
from preprocessing.processor import TextProcessor
from preprocessing.types import Encoded, Prepared, pack

_OUTPUTS: Final = ("token_ids", "finish_reason")
_GRACE_S: Final = 1.0


@dataclass(frozen=True, slots=True)
class _Prompt:
    """One text of a request: its prompt tokens, and how to continue them."""

    ids: list[int]
    text: str
    settings: dict[str, Any]
    stop: tuple[str, ...]
    returns_prompt: bool
    truncated: bool


class GenerationHandler:
    """A text-generation model without user code.

    ``keep_place()`` keeps a place for work that goes on after its request has ended, until its result is called.
    """

    takes_bytes = False
    task = GENERATION

    def __init__(
        self, processor: TextProcessor, backend: Backend, model: str, *, threads: ThreadPoolExecutor,
        keep_place: Callable[[], Callable[[], object]],
    ) -> None:  # fmt: skip
        self.unread = 0
        """The model's texts for requests that have ended before it did (a stop string, a client that left)."""
        self._keep_place = keep_place
        self.processor = processor
        self.backend = backend
        self.model = model
        self._threads = threads
        head = processor.head
        if not isinstance(head, TextGeneration):
            raise TypeError("a generation handler needs the head of text generation")
        self._head = head

    async def answer(self, question: Any, ask: Trace) -> object:
        """See ``Handler``. The texts of a list are continued concurrently."""
        prepared, prompts = await self._prepare(question, ask)
        started = perf_counter_ns()
        try:
            async with asyncio.TaskGroup() as group:
                tasks = [group.create_task(self._complete(prompt, ask.deadline)) for prompt in prompts]
        except BaseExceptionGroup as several:
            raise several.exceptions[0] from None
        ask.infer_ns = perf_counter_ns() - started
        texts = [task.result() for task in tasks]
        ask.generated_tokens = sum(one["generated_tokens"] for one in texts)
        return self._head.render(texts, prepared)

    async def stream(self, question: Any, ask: Trace) -> AsyncGenerator[Event, None]:
        """Yield the continuation piece by piece; the last event has ``finish_reason``.

        Raises ``GatewayError``; for refused input, before the first event.
        """
        prepared, prompts = await self._prepare(question, ask)
        if prepared.is_batch:
            raise InputRefused("a stream has one text", hint="send each text in a request of its own")
        started = perf_counter_ns()
        try:
            async with aclosing(self._events(prompts[0], ask.deadline)) as events:
                async for event in events:
                    yield event
        finally:
            ask.infer_ns = perf_counter_ns() - started

    async def close(self) -> None:
        """See ``Handler.close``; nothing is held."""

    async def _prepare(self, body: object, trace: Trace) -> tuple[Prepared, list[_Prompt]]:
        processor = self.processor
        started = perf_counter_ns()
        loop = asyncio.get_running_loop()
        if isinstance(body, Chat | TokenPrompts):
            prepared = await loop.run_in_executor(self._threads, processor.prepare_prompt, body)
        else:
            request = processor.parse(body)
            if processor.encodes_off_loop(request):
                prepared = await loop.run_in_executor(self._threads, processor.encode, request)
            else:
                prepared = processor.encode(request)
        prompts = [self._prompt(prepared, i) for i in range(len(prepared.rows))]
        note(trace, prepared)
        trace.prepare_ns = perf_counter_ns() - started
        return prepared, prompts

    def _prompt(self, prepared: Prepared, i: int) -> _Prompt:
        row, request = prepared.rows[i], prepared.request
        settings, kept = self._head.fitted(row.n_tokens, request.options["settings"])
        ids = row.ids.tolist()
        if kept < len(ids):
            self._head.refuse_if_cut(request, row)
            ids = ids[-kept:]
            prepared.rows[i] = row = Encoded(pack(ids), None, row.n_unknown, True)
        return _Prompt(
            ids=ids, text=str(request.texts[i]), settings=settings, stop=request.options["stop"],
            returns_prompt=request.options["return_full_text"], truncated=row.truncated,
        )  # fmt: skip

    async def _complete(self, prompt: _Prompt, deadline: float) -> dict[str, Any]:
        events = [event async for event in self._events(prompt, deadline)]
        return {
            "text": "".join(event.text for event in events),
            "generated_tokens": events[-1].generated_tokens,
            "finish_reason": events[-1].finish_reason,
        }

    async def _events(self, prompt: _Prompt, deadline: float) -> AsyncGenerator[Event, None]:
        """Yield an event for each piece of text that is final, and the last one.

        The model may write on after that. Until its end, this keeps the place of the request.
        """
        continuation = Continuation(self.processor.tokenizer, prompt.ids, prompt.stop)
        left = deadline - asyncio.get_running_loop().time()
        # The model gives up a little later: a caller that still waits gets the gateway's reason.
        settings = {**prompt.settings, "seconds": left + _GRACE_S}
        inputs = {
            "input_ids": np.array(prompt.ids, dtype=np.int64),
            "parameters": np.array([orjson.dumps(settings)], dtype=np.object_),
        }
        tokens, generated = len(prompt.ids), 0
        pending: list[int] = []
        has_ended = False
        prefix = prompt.text if prompt.returns_prompt else ""
        is_over = False
        leave: Callable[[], object] | None = None

        def ended() -> None:
            nonlocal is_over
            is_over = True
            if leave is not None:
                leave()
                self.unread -= 1

        try:
            async with aclosing(
                self.backend.stream(self.model, inputs, _OUTPUTS, timeout=left, ended=ended)
            ) as responses:
                async for response in responses:
                    try:
                        (token,) = response["token_ids"].tolist()
                        reason = bytes(response["finish_reason"][0]).decode()
                    except (KeyError, ValueError, IndexError, TypeError) as error:
                        raise BackendGarbage("a response of the model holds no token") from error
                    generated += 1
                    text = continuation.push(token)
                    pending.append(token)
                    if continuation.has_stopped:
                        reason = "stop"
                    elif reason:
                        text += continuation.rest()
                        reason = "stop" if continuation.has_stopped else reason
                    if text or reason:
                        yield Event(
                            text=prefix + text, token_ids=tuple(pending), finish_reason=reason or None, tokens=tokens,
                            generated_tokens=generated, truncated=prompt.truncated,
                        )  # fmt: skip
                        prefix = ""
                        pending = []
                    if continuation.has_stopped:
                        return  # the model does not know the stop text, and writes on
                    if reason:
                        has_ended = True
        except BackendRefused as error:
            raise ModelFailed(error.message, hint="the model and its tokenizer may not belong together") from error
        finally:
            if not is_over:
                leave = self._keep_place()
                self.unread += 1
        if not has_ended:
            raise BackendGarbage("the model ended without saying why")

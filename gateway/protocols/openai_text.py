"""OpenAI's completions and chat completions for text-generation endpoints, whole or streamed.

Converts bodies to requests of ``GenerationHandler``, and its answers and events to OpenAI's. Fields that the models
cannot fulfil (several choices, tools, log probabilities) are refused, unless their value asks for nothing, and so are
unknown ones. Pure.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from typing import Any, Final

import orjson

from gateway.errors import InputRefused
from gateway.handlers.endpoint import Endpoint, Event
from gateway.path.call import Call
from gateway.protocols.fields import (
    HARMLESS,
    are_ids,
    flag,
    model_of,
    object_in,
    object_of,
    refuse_other_fields,
    require_task,
    texts_or_ids,
    whole_number,
)
from gateway.protocols.json_body import dumps
from gateway.protocols.openai import now
from gateway.spec import normalize_url
from gateway.trace import Trace
from preprocessing.chat import Chat, TokenPrompts
from preprocessing.config import GENERATION
from preprocessing.types import AtMost

_REASONS: Final = {"eos": "stop", "stop": "stop", "length": "length"}
_SAME: Final = ("temperature", "top_p", "seed", "top_k", "repetition_penalty")
_COMMON: Final = ("model", "stream", "stream_options", "stop", "truncate_prompt_tokens")
_STREAM_OPTIONS: Final = ("include_usage", "include_obfuscation")
"""The second one asks for padding against eavesdroppers, which changes no text."""
_NEUTRAL: Final[Mapping[str, tuple[object, ...]]] = {
    "n": (1,), "best_of": (1,), "frequency_penalty": (0,), "presence_penalty": (0,), "logit_bias": ({},),
    "logprobs": (False, 0), "top_logprobs": (0,), "suffix": ("",), "tools": ([],), "functions": ([],),
    "tool_choice": ("none", "auto"), "function_call": ("none", "auto"), "modalities": (["text"],),
    "response_format": ({"type": "text"},), "parallel_tool_calls": (True, False), "store": (False,),
    # vLLM's
    "min_p": (0,), "min_tokens": (0,), "length_penalty": (1,), "use_beam_search": (False,), "ignore_eos": (False,),
    "include_stop_str_in_output": (False,), "stop_token_ids": ([],), "bad_words": ([],),
    "continue_final_message": (False,), "add_generation_prompt": (True,), "chat_template_kwargs": ({},),
    "documents": ([],),
}  # fmt: skip
"""Fields that are not supported → their values that ask for nothing and are accepted."""
_COMPLETION_TOKENS: Final = 16
"""OpenAI's own default for completions."""


class TextCall(Call):
    """The common part of both forms: the model, the sampling parameters, and streaming."""

    end = b"data: [DONE]\n\n"
    kind: str
    """The prefix of answer ids."""
    form: str
    """An example of a body."""
    texts: str
    """The field with the texts."""
    own: Sequence[str]
    """Its other fields that the other form does not have."""

    def __init__(self, body: object) -> None:
        """Read the fields of both forms. Raises ``InputRefused``."""
        self._body = body = object_of(body, self.form, self.texts)
        self._model = model_of(body)
        self.path = normalize_url(self._model, None)
        refuse_other_fields(body, (*_COMMON, *_SAME, self.texts, *self.own), _NEUTRAL, HARMLESS)
        self.streams = flag(body, "stream", default=False)
        options = object_in(body, "stream_options")
        refuse_other_fields(options, _STREAM_OPTIONS, {"continuous_usage_stats": (False,)})
        self._tells_usage = options.get("include_usage") is True
        self._parameters = {name: body[name] for name in _SAME if body.get(name) is not None}
        cut = body.get("truncate_prompt_tokens")  # vLLM's name
        if cut is not None and (isinstance(cut, bool) or cut != -1):
            raise InputRefused(
                "truncate_prompt_tokens must be -1, which cuts the beginning of a prompt that is too long",
                hint="leave it out, and such a prompt is refused",
            )
        self._parameters["truncate"] = cut is not None
        stop = body.get("stop")
        if stop is not None:
            self._parameters["stop"] = [stop] if isinstance(stop, str) else stop
        self._id = f"{self.kind}-{random.getrandbits(96):024x}"
        self._created = now()

    def _checked(self, endpoint: Endpoint, given: object) -> object:
        require_task(endpoint, GENERATION, self._model, "text generation")
        most = _most(endpoint)
        if self._wanted is not None and most is not None and self._wanted > most:
            raise InputRefused(f"{self._limit_name} must be a whole number of at least 1 and at most {most}")
        return given

    def _limit(self, name: str) -> None:
        """Take the number of new tokens from the field ``name``."""
        self._limit_name = name
        self._wanted = whole_number(self._body, name)
        if self._wanted is not None:
            self._parameters["max_new_tokens"] = self._wanted

    def _frame(self, kind: str, choices: Sequence[Mapping[str, Any]], **extra: Any) -> dict[str, Any]:
        return {"id": self._id, "object": kind, "created": self._created, "model": self._model, "choices": choices,
                **extra}  # fmt: skip

    def _chunks(self, kind: str, choices: Sequence[Mapping[str, Any]], event: Event) -> bytes:
        written = b"".join(_data(self._frame(kind, [choice])) for choice in choices)
        if event.finish_reason is not None and self._tells_usage:
            written += _data(self._frame(kind, [], usage=_usage(event.tokens, event.generated_tokens)))
        return written


class CompletionsCall(TextCall):
    """``POST /v1/completions``: one or several prompts, as texts or as token ids of the model's tokenizer."""

    kind = "cmpl"
    form = '{"model": "NAME", "prompt": "…", "max_tokens": 16}'
    texts = "prompt"
    own = ("max_tokens", "echo")

    def __init__(self, body: object) -> None:
        """Read ``body``. Raises ``InputRefused``."""
        super().__init__(body)
        self._limit("max_tokens")
        if self._body.get("echo") is not None:
            self._parameters["return_full_text"] = flag(self._body, "echo", default=False)
        prompt = self._body["prompt"]
        _, ids = texts_or_ids(prompt, "prompt")
        several = isinstance(prompt, list) and not (ids is not None and are_ids(prompt))
        self._given: object = (
            {"text": prompt, "parameters": self._parameters} if ids is None
            else TokenPrompts(ids, self._parameters, several)
        )  # fmt: skip
        if self.streams and several:
            raise InputRefused("a streamed request may have only one prompt", hint="send one request per prompt")

    def question(self, endpoint: Endpoint) -> Any:
        """See ``Call.question``."""
        given = self._checked(endpoint, self._given)
        # OpenAI's default may exceed what a prompt leaves of the model's positions. It must not be refused for that.
        default = AtMost(min(_COMPLETION_TOKENS, _most(endpoint) or _COMPLETION_TOKENS))
        self._parameters["max_new_tokens"] = self._wanted or default
        return given

    def render(self, answer: Any, endpoint: Endpoint, trace: Trace) -> bytes:
        """See ``Call.render``."""
        del endpoint, trace
        results, prompt_tokens = _read_answer(answer)
        choices = [
            {"index": i, "text": result["text"], "logprobs": None, "finish_reason": _REASONS[result["finish_reason"]]}
            for i, result in enumerate(results)
        ]
        usage = _usage(prompt_tokens, sum(result["generated_tokens"] for result in results))
        return dumps(self._frame("text_completion", choices, usage=usage))

    def piece(self, event: Event) -> bytes:
        """See ``Call.piece``."""
        reason = None if event.finish_reason is None else _REASONS[event.finish_reason]
        choice = {"index": 0, "text": event.text, "logprobs": None, "finish_reason": reason}
        return self._chunks("text_completion", [choice], event)


class ChatCall(TextCall):
    """``POST /v1/chat/completions``: a conversation, rendered by the model's chat template."""

    kind = "chatcmpl"
    form = '{"model": "NAME", "messages": [{"role": "user", "content": "…"}]}'
    texts = "messages"
    own = ("max_tokens", "max_completion_tokens")

    def __init__(self, body: object) -> None:
        """Read ``body``. Raises ``InputRefused``."""
        super().__init__(body)
        self._limit("max_tokens" if self._body.get("max_completion_tokens") is None else "max_completion_tokens")
        messages = self._body["messages"]
        if not isinstance(messages, list) or not messages:
            raise InputRefused("messages must be a list", hint='send [{"role": "user", "content": "…"}]')
        self._chat = Chat([_message(i, message) for i, message in enumerate(messages)], self._parameters)
        self._has_begun = False

    def question(self, endpoint: Endpoint) -> Any:
        """See ``Call.question``."""
        return self._checked(endpoint, self._chat)

    def render(self, answer: Any, endpoint: Endpoint, trace: Trace) -> bytes:
        """See ``Call.render``."""
        del endpoint, trace
        (result,), prompt_tokens = _read_answer(answer)
        choice = {
            "index": 0,
            "message": {"role": "assistant", "content": result["text"], "refusal": None},
            "logprobs": None,
            "finish_reason": _REASONS[result["finish_reason"]],
        }
        usage = _usage(prompt_tokens, result["generated_tokens"])
        return dumps(self._frame("chat.completion", [choice], usage=usage))

    def piece(self, event: Event) -> bytes:
        """See ``Call.piece``."""
        deltas: list[tuple[dict[str, str], str | None]] = []
        if not self._has_begun:
            self._has_begun = True
            deltas.append(({"role": "assistant", "content": ""}, None))
        if event.text:
            deltas.append(({"content": event.text}, None))
        if event.finish_reason is not None:
            deltas.append(({}, _REASONS[event.finish_reason]))
        choices = [{"index": 0, "delta": delta, "logprobs": None, "finish_reason": why} for delta, why in deltas]
        return self._chunks("chat.completion.chunk", choices, event)


def _message(i: int, message: object) -> dict[str, Any]:
    where = f"messages[{i}]"
    if not isinstance(message, dict) or not isinstance(message.get("role"), str):
        raise InputRefused(f"{where} must be an object with role and content")
    content = message.get("content")
    if isinstance(content, list):
        parts = []
        for part in content:
            if not isinstance(part, dict) or part.get("type") != "text" or not isinstance(part.get("text"), str):
                raise InputRefused(f"{where}.content: only parts of type text are accepted")
            parts.append(part["text"])
        content = "".join(parts)
    if not isinstance(content, str):
        raise InputRefused(f"{where}.content must be a text")
    return {**message, "content": content}


def _most(endpoint: Endpoint) -> int | None:
    """Return how many tokens a request may ask for; None if the endpoint does not say it."""
    processor = getattr(endpoint.handler, "processor", None)
    return None if processor is None else processor.config.max_length - 1


def _read_answer(answer: Mapping[str, Any]) -> tuple[list[Mapping[str, Any]], int]:
    tokens = answer["tokens"]
    if "results" in answer:
        return list(answer["results"]), sum(tokens)
    return [answer], tokens


def _usage(prompt: int, generated: int) -> dict[str, int]:
    return {"prompt_tokens": prompt, "completion_tokens": generated, "total_tokens": prompt + generated}


def _data(value: object) -> bytes:
    return b"data: " + orjson.dumps(value) + b"\n\n"

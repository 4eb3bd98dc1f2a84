"""Text generation: a text to its continuation, as `transformers`' text-generation pipeline continues it.

Request: `{"text": …, "stream": false, "parameters": {"max_new_tokens": 64, "do_sample": true, "temperature": 0.7, …}}`.

Answer for one text: `{"text": "…", "tokens": n, "generated_tokens": m, "finish_reason": "eos"}`; for a list:
`{"results": [{"text": …, "generated_tokens": m, "finish_reason": …}, …], "tokens": [n, …]}`.

This head parses requests and renders answers. The backend sends tokens one by one, and `preprocessing.continuation`
turns them into text.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Final

from pydantic import Field

from preprocessing.config import GENERATION
from preprocessing.errors import InvalidBundle, InvalidInput, TooLong
from preprocessing.heads.base import Head, parse_texts
from preprocessing.parameters import AS_LIST, Count, CountOrZero, Parameters, refuse_above
from preprocessing.types import AtMost, Encoded, ParsedRequest

DEFAULT_NEW_TOKENS: Final = 256
_TOP_K: Final = 50  # as in transformers
_SAMPLES: Final = ("temperature", "top_k", "top_p")
"""A request with one of these parameters wants sampling."""
_Stop = Annotated[str, Field(min_length=1, max_length=256)]
"""Limited, because each new token is compared with each of them; and so is their number."""


class _Parameters(Parameters):
    max_new_tokens: Count | None = None
    do_sample: bool | None = None
    temperature: Annotated[float, Field(ge=0)] | None = None
    top_k: CountOrZero | None = None
    top_p: Annotated[float, Field(gt=0, le=1)] | None = None
    repetition_penalty: Annotated[float, Field(gt=0)] | None = None
    seed: Annotated[int, Field(ge=0, lt=2**63)] | None = None
    stop: Annotated[list[_Stop], Field(min_length=1, max_length=16), AS_LIST] | None = None
    return_full_text: bool = False
    truncate: bool | None = None


class TextGeneration(Head):
    """The head of causal language models."""

    task = GENERATION
    parameters = _Parameters
    example: Mapping[str, object] = {"text": "Once upon a time", "parameters": {"max_new_tokens": 4}}

    def parse(self, body: object) -> ParsedRequest:
        """Return texts to continue; `options` has `settings` (for the backend's model), `stop`, `return_full_text`."""
        if isinstance(body, dict) and "stream" in body:
            if not isinstance(body["stream"], bool | None):
                raise InvalidInput("stream must be true or false", field="stream")
            body = {name: value for name, value in body.items() if name != "stream"}
        texts, is_batch, parameters = parse_texts(body, self._config, pairs=False)
        asked = _Parameters.of(parameters)
        options = {
            "settings": self._settings(asked, parameters.get("max_new_tokens")),
            "stop": asked.stop or (),
            "return_full_text": asked.return_full_text,
        }
        return ParsedRequest(texts, is_batch, options, truncate=asked.truncate)

    def select_outputs(self, available: Sequence[str]) -> tuple[str, ...]:
        """Return the outputs of a model that sends one response per token, with the reason in the last one."""
        if "token_ids" not in available or "finish_reason" not in available:
            raise InvalidBundle(
                f"The loaded model answers {', '.join(available) or 'nothing'}, text generation needs token_ids and "
                "finish_reason",
                hint="export the graph with its key/value cache (past_key_values.*), or name the task "
                "(--aux-config gateway.task=text-generation)",
            )
        return ("token_ids", "finish_reason")

    def _settings(self, asked: _Parameters, new_tokens: object) -> dict[str, Any]:
        config = self._config
        own = config.generation
        refuse_above(config.max_length - 1, max_new_tokens=asked.max_new_tokens)
        temperature, do_sample = asked.temperature, asked.do_sample
        if do_sample is None:
            do_sample = any(getattr(asked, name) is not None for name in _SAMPLES) or bool(own.get("do_sample"))
        if temperature is not None and temperature <= 0:
            temperature, do_sample = None, False  # OpenAI's clients request greedy decoding this way
        top_p, top_k, penalty = asked.top_p, asked.top_k, asked.repetition_penalty
        return {
            "max_new_tokens": new_tokens,  # not its copy: it may be an `AtMost`
            "do_sample": do_sample,
            "temperature": temperature or own.get("temperature") or 1.0,
            "top_k": own.get("top_k", _TOP_K) if top_k is None else top_k,
            "top_p": own.get("top_p", 1.0) if top_p is None else top_p,
            "repetition_penalty": own.get("repetition_penalty", 1.0) if penalty is None else penalty,
            "seed": asked.seed,
            "eos_token_ids": list(config.eos_ids),
        }

    def fitted(self, prompt_tokens: int, settings: Mapping[str, Any]) -> tuple[dict[str, Any], int]:
        """Return the settings with a number of new tokens that fits the model, and the room for the prompt's last
        tokens.

        A number requested by the client takes precedence over the prompt; the model's default takes the remaining room.
        """
        most = self._config.max_length
        wanted = settings["max_new_tokens"]
        if wanted is not None and not isinstance(wanted, AtMost):
            return dict(settings), max(most - wanted, 1)
        default = self._config.generation.get("max_new_tokens", DEFAULT_NEW_TOKENS) if wanted is None else wanted
        wanted = min(int(default), most - 1)
        kept = min(prompt_tokens, most - 1)
        return {**settings, "max_new_tokens": min(wanted, most - kept)}, kept

    def refuse_if_cut(self, request: ParsedRequest, prompt: Encoded) -> None:
        """Raise TooLong if the request, or else the endpoint, does not want a prompt to lose its beginning."""
        if self._config.truncate if request.truncate is None else request.truncate:
            return
        wanted = request.options["settings"]["max_new_tokens"]
        raise TooLong(
            f"the prompt has {'more than ' if prompt.truncated else ''}{prompt.n_tokens} tokens"
            + ("" if wanted is None or isinstance(wanted, AtMost) else f" and {wanted} new ones are asked for")
            + f", the model reads {self._config.max_length} in all",
            hint="shorten it, ask for fewer new tokens, or let its beginning be cut (truncate: true; in OpenAI's form "
            "truncate_prompt_tokens: -1)",
        )

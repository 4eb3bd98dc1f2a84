"""Text generation: a text to its continuation, as `transformers`' text-generation pipeline continues it.

Request: `{"text": …, "stream": false, "parameters": {"max_new_tokens": 64, "do_sample": true, "temperature": 0.7, …}}`.

Answer for one text: `{"text": "…", "tokens": n, "generated_tokens": m, "finish_reason": "eos"}`; for a list:
`{"results": [{"text": …, "generated_tokens": m, "finish_reason": …}, …], "tokens": [n, …]}`.

This head parses requests and renders answers. The backend sends tokens one by one, and `preprocessing.continuation`
turns them into text.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from preprocessing.config import GENERATION, TaskConfig
from preprocessing.errors import InvalidBundle, TooLong
from preprocessing.heads.base import (
    Head,
    count_of,
    flag_of,
    number_of,
    parse_texts,
    refuse_unknown_parameters,
    strings_of,
)
from preprocessing.types import AtMost, Encoded, ParsedRequest

DEFAULT_NEW_TOKENS: Final = 256
_TOP_K: Final = 50  # as in transformers
_MAX_STOPS: Final = 16
_STOP_CHARS: Final = 256
"""Limits on stop strings, because each new token is compared with each of them."""
_PARAMETERS: Final = (
    *("max_new_tokens", "do_sample", "temperature", "top_k", "top_p", "repetition_penalty"),
    *("seed", "stop", "return_full_text", "truncate"),
)
_SAMPLES: Final = ("temperature", "top_k", "top_p")
"""A request with one of these parameters wants sampling."""


class TextGeneration(Head):
    """The head of causal language models."""

    task = GENERATION

    def __init__(self, config: TaskConfig) -> None:
        self._config = config

    def parse(self, body: object) -> ParsedRequest:
        """Return texts to continue; `options` has `settings` (for the backend's model), `stop`, `return_full_text`."""
        if isinstance(body, dict) and "stream" in body:
            flag_of(body, "stream")
            body = {name: value for name, value in body.items() if name != "stream"}
        texts, is_batch, parameters = parse_texts(body, self._config, pairs=False)
        refuse_unknown_parameters(parameters, _PARAMETERS)
        options = {
            "settings": self._settings(parameters),
            "stop": strings_of(parameters, "stop", most=_MAX_STOPS, max_chars=_STOP_CHARS) or (),
            "return_full_text": flag_of(parameters, "return_full_text") or False,
        }
        return ParsedRequest(texts, is_batch, options, truncate=flag_of(parameters, "truncate"))

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

    def describe(self) -> dict[str, object]:
        """Return the model's own sampling parameters and an example."""
        return {
            "defaults": dict(self._config.generation),
            "parameters": list(_PARAMETERS),
            "streams": True,
            "example": {"text": "Once upon a time", "parameters": {"max_new_tokens": 4}},
        }

    def _settings(self, parameters: Mapping[str, object]) -> dict[str, Any]:
        config = self._config
        own = config.generation
        new_tokens = count_of(parameters, "max_new_tokens", most=config.max_length - 1)
        temperature = number_of(parameters, "temperature", least=0)
        do_sample = flag_of(parameters, "do_sample")
        if do_sample is None:
            do_sample = any(parameters.get(name) is not None for name in _SAMPLES) or bool(own.get("do_sample"))
        if temperature is not None and temperature <= 0:
            temperature, do_sample = None, False  # OpenAI's clients request greedy decoding this way
        top_p = number_of(parameters, "top_p", above=0, most=1)
        top_k = count_of(parameters, "top_k", least=0)
        penalty = number_of(parameters, "repetition_penalty", above=0)
        return {
            "max_new_tokens": new_tokens,
            "do_sample": do_sample,
            "temperature": temperature or own.get("temperature") or 1.0,
            "top_k": own.get("top_k", _TOP_K) if top_k is None else top_k,
            "top_p": own.get("top_p", 1.0) if top_p is None else top_p,
            "repetition_penalty": own.get("repetition_penalty", 1.0) if penalty is None else penalty,
            "seed": count_of(parameters, "seed", least=0, most=2**63 - 1),
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

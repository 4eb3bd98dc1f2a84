"""Renders a conversation as a prompt with the model's own chat template (Jinja2, as in `transformers`).

Templates come with models, so they run in Jinja's immutable sandbox: they cannot access Python's internals or change
their arguments. `processor` calls this from any thread; a compiled template is never changed.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from preprocessing.errors import InvalidBundle, InvalidInput

Message = Mapping[str, Any]

_FILE: Final = "chat_template.jinja"
_DEFAULT: Final = "default"
_SPECIAL: Final = ("bos_token", "eos_token", "unk_token", "pad_token", "sep_token", "cls_token", "mask_token")


@dataclass(frozen=True, slots=True)
class Chat:
    """A request to continue a conversation; used in place of a body of text generation."""

    messages: Sequence[Message]
    parameters: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class TokenPrompts:
    """A request to continue prompts given as token ids, including special tokens."""

    prompts: Sequence[Sequence[int]]
    parameters: Mapping[str, Any] = field(default_factory=dict)
    is_batch: bool = False


class ChatTemplate:
    """A model's chat template, compiled once."""

    def __init__(self, source: str, tokens: Mapping[str, str]) -> None:
        """Compile `source`, which may refer to the special `tokens` by name. Raises InvalidBundle."""
        import jinja2
        from jinja2.ext import loopcontrols
        from jinja2.sandbox import ImmutableSandboxedEnvironment

        environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols])
        environment.filters["tojson"] = _to_json
        environment.globals["raise_exception"] = _refuse
        environment.globals["strftime_now"] = _strftime_now
        try:
            self._template = environment.from_string(source)
        except jinja2.TemplateError as error:
            raise InvalidBundle(
                f"the chat template cannot be compiled: {error}", hint="save the tokenizer again"
            ) from error
        self._errors: tuple[type[Exception], ...] = (
            jinja2.TemplateError, TypeError, ValueError, LookupError, AttributeError, ArithmeticError, RecursionError,
        )  # fmt: skip
        self._tokens = dict(tokens)

    @classmethod
    def from_folder(cls, folder: Path) -> ChatTemplate | None:
        """Read `chat_template.jinja` or `tokenizer_config.json`; None without a template. Raises InvalidBundle."""
        settings = _read_json(folder / "tokenizer_config.json")
        special = _read_json(folder / "special_tokens_map.json")
        source: object = settings.get("chat_template")
        if (folder / _FILE).is_file():
            source = (folder / _FILE).read_text(encoding="utf-8")
        if isinstance(source, list):  # several named templates
            named = {item.get("name"): item.get("template") for item in source if isinstance(item, dict)}
            source = named.get(_DEFAULT)
        if not isinstance(source, str) or not source.strip():
            return None
        tokens = {}
        for name in _SPECIAL:
            token = settings.get(name) or special.get(name)
            token = token.get("content") if isinstance(token, dict) else token
            if isinstance(token, str):
                tokens[name] = token
        return cls(source, tokens)

    def render(self, messages: Sequence[Message]) -> str:
        """Return the prompt that asks for the next message. Raises InvalidInput if the template refuses them."""
        try:
            text: str = self._template.render(
                messages=list(messages), add_generation_prompt=True, tools=None, documents=None, **self._tokens
            )
        except self._errors as error:
            raise InvalidInput(
                f"the model's chat template does not accept these messages: {error}", field="messages"
            ) from error
        return text


def _to_json(value: object, ensure_ascii: bool = False, indent: int | None = None) -> str:
    # Jinja's own filter escapes HTML, but a prompt is not HTML.
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent)


def _refuse(message: str) -> None:
    import jinja2

    raise jinja2.TemplateError(message)


def _strftime_now(form: str) -> str:
    from datetime import datetime

    return datetime.now().strftime(form)  # local time, as in transformers


def _read_json(path: Path) -> Mapping[str, Any]:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}

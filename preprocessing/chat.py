"""Renders a conversation as a prompt with the model's own chat template (Jinja2, as in `transformers`).

Templates come with models, so they run in Jinja's immutable sandbox (`chat_sandbox`): they cannot access Python's
internals or change their arguments, and have two seconds. `processor` calls this from any thread; a compiled template
is never changed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from preprocessing.errors import InvalidBundle, InvalidInput
from preprocessing.model_files import read_json, read_limited

Message = Mapping[str, Any]

_FILE: Final = "chat_template.jinja"
_DEFAULT: Final = "default"
_MAX_BYTES: Final = 256 << 10
"""Longest template. Those of language models have up to 30 kB."""
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

        from preprocessing.chat_sandbox import BoundedEnvironment

        if len(source) > _MAX_BYTES:
            raise InvalidBundle(
                f"the chat template has {len(source)} characters, at most {_MAX_BYTES} are read", hint="shorten it"
            )
        self._errors: tuple[type[Exception], ...] = (
            jinja2.TemplateError, TypeError, ValueError, LookupError, AttributeError, ArithmeticError, RecursionError,
        )  # fmt: skip
        self._environment = BoundedEnvironment()
        try:
            self._template = self._environment.compiled(source)
        except (*self._errors, SyntaxError) as error:  # Jinja makes Python code of what it has read
            raise InvalidBundle(
                f"the chat template cannot be compiled: {error}", hint="save the tokenizer again"
            ) from error
        self._tokens = dict(tokens)

    @classmethod
    def from_folder(cls, folder: Path) -> ChatTemplate | None:
        """Read `chat_template.jinja` or `tokenizer_config.json`; None without a template. Raises InvalidBundle."""
        settings = _settings(folder / "tokenizer_config.json")
        special = _settings(folder / "special_tokens_map.json")
        source: object = settings.get("chat_template")
        if (folder / _FILE).is_file():
            try:
                source = read_limited(folder / _FILE).decode("utf-8")
            except (OSError, ValueError) as error:
                raise InvalidBundle(f"{_FILE} cannot be read: {error}", hint="save the tokenizer again") from error
        if isinstance(source, list):  # several named templates
            named = {item.get("name"): item.get("template") for item in source if isinstance(item, dict)}
            source = named.get(_DEFAULT)
        if not isinstance(source, str) or not source.strip():
            return None
        extra = settings.get("extra_special_tokens")
        given = dict(extra) if isinstance(extra, dict) else {}  # tokens of the model's own, such as image_token
        given |= {name: settings.get(name) or special.get(name) for name in _SPECIAL}
        contents = {name: token.get("content") if isinstance(token, dict) else token for name, token in given.items()}
        return cls(source, {name: token for name, token in contents.items() if isinstance(token, str)})

    def render(self, messages: Sequence[Message]) -> str:
        """Return the prompt that asks for the next message. Raises InvalidInput if the template refuses them."""
        try:
            return self._environment.rendered(
                self._template, messages=list(messages), add_generation_prompt=True, tools=None, documents=None,
                **self._tokens,
            )  # fmt: skip
        except self._errors as error:
            raise InvalidInput(
                f"the model's chat template does not accept these messages: {error}", field="messages"
            ) from error


def _settings(path: Path) -> Mapping[str, Any]:
    try:
        found = read_json(path)
    except (OSError, ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}

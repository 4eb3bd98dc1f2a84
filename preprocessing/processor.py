"""Converts one endpoint's requests to rows and tensors, and a backend's tensors to answers.

The gateway has a `TextProcessor` per endpoint version: a tokenizer and a head. It calls `parse` and `encode` before the
batcher and `finish` after it, from many threads at a time.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Literal, cast

from numpy.typing import DTypeLike, NDArray

from preprocessing.chat import Chat, ChatTemplate, TokenPrompts
from preprocessing.collate import INPUT_NAMES, collate, padded_tokens
from preprocessing.config import GENERATION, TaskConfig
from preprocessing.errors import InvalidBundle, InvalidInput, TooLong
from preprocessing.heads import head_for
from preprocessing.heads.base import Head, prompt_of, read_text, refuse_many
from preprocessing.parameters import Count, Parameters
from preprocessing.tokenizer import TextTokenizer, Token
from preprocessing.types import Encoded, ParsedRequest, Prepared, Tensors, Texts, Windows, pack, total_chars
from preprocessing.windows import Windower

_ROW_CHARS: Final = 8
"""Overhead of a row, expressed in characters."""
_ANSWER_BYTES: Final = 64 << 10
_OUTPUT_BYTES: Final = 4 << 20
"""The largest answer, and the largest outputs, that are made and read in less than about two milliseconds."""
_GROWTH: Final = 4
"""How many times as long texts may become when they are normalized. Hangul becomes three times as long."""
_TOKEN_BYTES: Final = 512
"""Memory of a token while a list of tokens is built; its JSON takes a fifth of it."""


class _OfLength(Parameters):
    """The parameters of every task."""

    truncate: bool | None = None
    truncation_direction: Literal["left", "right"] | None = None
    max_length: Count | None = None


_OF_LENGTH: Final = frozenset(_OfLength.model_fields)


class TextProcessor:
    """Serves a model folder without user code: the folder's files determine the task and its settings."""

    def __init__(
        self,
        config: TaskConfig,
        tokenizer: TextTokenizer,
        head: Head,
        *,
        input_names: Sequence[str] | None = None,
        input_dtypes: Mapping[str, DTypeLike] | None = None,
        output_names: Sequence[str] | None = None,
    ) -> None:
        names = tuple(config.input_names if input_names is None else input_names)
        unknown = [name for name in names if name not in INPUT_NAMES]
        if unknown or "input_ids" not in names:
            raise InvalidBundle(
                f"The model takes the inputs {', '.join(names) or '(none)'}",
                hint=f"text tasks feed {', '.join(INPUT_NAMES)}; other models need a Preprocess class",
            )
        if config.vocab_size is not None and tokenizer.vocab_size > config.vocab_size:
            raise InvalidBundle(
                f"tokenizer.json has ids up to {tokenizer.vocab_size - 1}, "
                f"but the model's vocab_size is {config.vocab_size}",
                hint="the tokenizer belongs to another model, or tokens were added without resizing the model",
            )
        self.config = config
        self.tokenizer = tokenizer
        self.head = head
        self.input_names = names
        self.output_names = None if output_names is None else head.select_outputs(output_names)
        """Outputs to request from the backend; None for all, if its outputs were unknown at load."""
        self._windower = tokenizer.windower if head.needs_windows else None
        # Without special tokens, a row may have no tokens at all.
        self._may_be_empty = not tokenizer.adds_special_tokens
        self.text_fields = tuple(head.text_fields)
        """The fields of a body that hold texts."""
        self._dtypes = dict(input_dtypes or {})
        self._output_sizes: tuple[int, float] | None = None
        """Bytes of the model's outputs per row and per padded token, measured on its first answer."""
        self.chat: ChatTemplate | None = None
        """The model's chat template, if it has a usable one."""
        self.chat_fault = ""
        """Why the model's chat template cannot be used; empty without one."""

    @classmethod
    def from_folder(
        cls,
        folder: Path,
        *,
        input_names: Sequence[str] | None = None,
        input_dtypes: Mapping[str, DTypeLike] | None = None,
        output_names: Sequence[str] | None = None,
        options: Mapping[str, object] | None = None,
        word_cache: bool | int = True,
    ) -> TextProcessor:
        """Read a model folder; names and types are the backend's metadata, if known.

        `word_cache` is the most words that the tokenizer remembers (True: the default, False: none). Raises
        InvalidBundle.
        """
        config = TaskConfig.from_folder(folder, options)
        tokenizer = TextTokenizer.from_folder(folder, config, word_cache=word_cache)
        config = config.with_ids(tokenizer.id_of)
        made = cls(
            config,
            tokenizer,
            head_for(config, tokenizer),
            input_names=input_names,
            input_dtypes=input_dtypes,
            output_names=output_names,
        )
        if config.task == GENERATION:
            try:
                made.chat = ChatTemplate.from_folder(folder)
            except InvalidBundle as fault:  # it costs chats only: prompts need no template
                made.chat_fault = str(fault)
        return made

    def parse(self, body: object) -> ParsedRequest:
        """Check a request. Raises InvalidInput."""
        if type(body) is dict:
            parameters = body.get("parameters")
            if type(parameters) is dict and not _OF_LENGTH.isdisjoint(parameters) and self.config.task != GENERATION:
                return self._parse_length(body, parameters)
        return self.head.parse(body)

    def _parse_length(self, body: Mapping[str, object], parameters: Mapping[str, object]) -> ParsedRequest:
        """Parse what every task accepts about long texts, then the rest by the head."""
        config = self.config
        asked = _OfLength.of({name: value for name, value in parameters.items() if name in _OF_LENGTH})
        side, most = asked.truncation_direction, asked.max_length
        if side not in (None, config.truncation_side):
            kept = "beginning" if config.truncation_side == "right" else "end"
            raise InvalidInput(
                f"truncation_direction cannot be {side} here: this endpoint keeps the {kept} of a long text",
                field="parameters.truncation_direction",
                hint="truncation_side in the model's tokenizer_config.json says so",
            )
        if most is not None and most < config.max_length:
            raise InvalidInput(
                f"max_length cannot be {most} for a single request: this endpoint reads {config.max_length} tokens",
                field="parameters.max_length",
                hint=f"cut the text yourself, or add the endpoint with --aux-config gateway.max_length={most}",
            )
        rest = {name: value for name, value in parameters.items() if name not in _OF_LENGTH}
        request = self.head.parse({**body, "parameters": rest})
        request.truncate = asked.truncate
        return request

    def encodes_off_loop(self, request: ParsedRequest) -> bool:
        """Return whether `encode` takes milliseconds, so that it should run off the event loop.

        Counts the characters of all rows, a text once per row that it becomes; stops counting at the limit.
        """
        if self.tokenizer.is_slow:
            return True
        texts, left = request.texts, self.config.offload_chars
        if len(texts) == 1 and type(texts[0]) is str:
            return len(texts[0]) + _ROW_CHARS > left
        for text in texts:
            left -= len(text) if type(text) is str else len(text[0]) + len(text[1])
            left -= _ROW_CHARS
            if left < 0:
                return True
        return False

    def encode(self, request: ParsedRequest) -> Prepared:
        """Tokenize. Raises InvalidInput for a long text if the request, or else the endpoint, does not want cuts."""
        self._refuse_growing(request.texts, self.text_fields[0])
        windower = self._windower
        rows = self.tokenizer.encode_batch(request.texts) if windower is None else self._windows(windower, request)
        cuts = request.truncate
        if not (self.config.truncate if cuts is None else cuts):
            self._refuse_truncated(rows, request)
        if self._may_be_empty:
            self._refuse_empty(rows)
        return self._weighed(Prepared(rows, request))

    def prepare(self, body: object) -> Prepared:
        """Do `parse` and `encode`."""
        return self.encode(self.parse(body))

    def prepare_ids(self, rows: Sequence[Sequence[int]], parameters: Mapping[str, object] | None = None) -> Prepared:
        """Return a request of texts given as token ids, including special tokens. Raises InvalidInput.

        `parameters` are as in a body.
        """
        most = self.config.max_length
        refuse_many(len(rows), self.config, "input")
        for i, ids in enumerate(rows):
            if len(ids) > most:
                raise InvalidInput(f"input[{i}] has {len(ids)} tokens, this model reads {most}", field=f"input[{i}]")
            self._refuse_unknown_ids(ids, f"input[{i}]")
        request = ParsedRequest([""] * len(rows), True)
        if parameters:
            # The head needs some text to parse; its result for the text is not used.
            request.options = self.parse({"text": "-", "parameters": parameters}).options
        return self._weighed(Prepared([Encoded(pack(ids)) for ids in rows], request))

    def tokens_of(
        self, texts: Sequence[object], *, add_special_tokens: bool = True, prompt_name: object = None
    ) -> list[tuple[str, list[Token]]]:
        """Return each text as it is tokenized (with its prompt) and all its tokens. Slow. Raises InvalidInput."""
        config = self.config
        refuse_many(len(texts), config, "inputs")
        prompt = prompt_of(config, prompt_name, "prompt_name")
        checked = [prompt + read_text(text, f"inputs[{i}]", config) for i, text in enumerate(texts)]
        most = left = config.max_answer_bytes // _TOKEN_BYTES
        self._refuse_growing(checked, "inputs")
        found = []
        for text in checked:
            tokens = self.tokenizer.tokens_of(text, add_special_tokens=add_special_tokens, most=left)
            if tokens is None or len(tokens) > left:
                raise InvalidInput(
                    f"The texts have more than {most} tokens, which is the most that one answer lists",
                    field="inputs",
                    hint="send several requests; the endpoint's option max_answer_bytes sets the limit",
                )
            left -= len(tokens)
            found.append((text, tokens))
        return found

    def text_of(self, rows: Sequence[Sequence[int]], *, skip_special_tokens: bool = True) -> list[str]:
        """Decode lists of token ids. Each id counts as a character against the limit. Raises InvalidInput."""
        config = self.config
        refuse_many(len(rows), config, "ids")
        if sum(map(len, rows)) > config.max_chars:
            raise InvalidInput(f"There are more than {config.max_chars} ids", field="ids", hint="send several requests")
        for i, ids in enumerate(rows):
            self._refuse_unknown_ids(ids, f"ids[{i}]")
        return self.tokenizer.decode_batch(rows, skip_special_tokens=skip_special_tokens)

    def prepare_prompt(self, body: Chat | TokenPrompts) -> Prepared:
        """Return a conversation rendered by the model's template, or prompts of token ids. Raises InvalidInput."""
        if isinstance(body, TokenPrompts):
            most = self.config.max_length
            refuse_many(len(body.prompts), self.config, "prompt")
            for ids in body.prompts:
                if not ids:
                    raise InvalidInput("prompt has no token ids", field="prompt")
                self._refuse_unknown_ids(ids, "prompt")
            # The text is used only if the answer begins with the prompt; the head needs some text to parse.
            texts = [read if (read := self.tokenizer.decode(ids)).strip() else "-" for ids in body.prompts]
            rows = [Encoded(pack(ids[-most:]), truncated=len(ids) > most) for ids in body.prompts]
            text: object = texts if body.is_batch else texts[0]
        else:
            if self.chat is None:
                raise InvalidInput(
                    self.chat_fault or "this model has no chat template",
                    field="messages",
                    hint="send a prompt to /v1/completions",
                )
            text = self.chat.render(body.messages)
        request = self.head.parse({"text": text, "parameters": dict(body.parameters)})
        if isinstance(body, Chat):
            self._refuse_growing([str(text)], "messages")
            rows = [self.tokenizer.encode_bare(str(text))]
        return Prepared(rows, request)

    def collate_rows(self, rows: Sequence[Encoded]) -> dict[str, NDArray[Any]]:
        """Return the model's inputs, padded to the longest row on the side that the model expects."""
        config = self.config
        return collate(
            rows,
            pad_id=config.pad_id,
            pad_type_id=config.pad_type_id,
            padding_side=config.padding_side,
            input_names=self.input_names,
            dtypes=self._dtypes,
        )

    def finish(self, outputs: Tensors, prepared: Prepared) -> dict[str, object]:
        """Return the head's answer; it may contain numpy arrays."""
        if self._output_sizes is None:
            self._output_sizes = _sizes(outputs)
        return self.head.render(self.head.decode(outputs, prepared), prepared)

    def describe(self) -> dict[str, object]:
        """Return the endpoint's description for its docs page, as plain JSON values."""
        config, described = self.config, self.head.describe()
        if config.task != GENERATION:
            described["parameters"] = [*cast("list[str]", described["parameters"]), "truncate"]
        return {"task": config.task, "max_length": config.max_length, **described}

    def _windows(self, windower: Windower, request: ParsedRequest) -> list[Encoded]:
        windows, field = request.windows or Windows(), self.text_fields[-1]
        return list(
            windower.encode(request.texts, windows, refuse_many=lambda rows: refuse_many(rows, self.config, field))
        )

    def _weighed(self, prepared: Prepared) -> Prepared:
        """Say whether the answer is much work. Raises InvalidInput if it exceeds the endpoint's limits."""
        config, rows, output_bytes = self.config, prepared.rows, 0
        if self._output_sizes is not None:
            per_row, per_token = self._output_sizes
            output_bytes = len(rows) * per_row
            if per_token:
                output_bytes += int(padded_tokens(rows) * per_token)
        if output_bytes > config.max_output_bytes and len(rows) > 1:
            raise InvalidInput(
                f"The model's outputs for this request take about {output_bytes} bytes, at most "
                f"{config.max_output_bytes} are held for one request",
                field=self.text_fields[-1],
                hint="send several requests; the endpoint's option max_output_bytes sets the limit",
            )
        answer_bytes = self.head.answer_bytes(prepared, output_bytes)
        prepared.finishes_off_loop = answer_bytes > _ANSWER_BYTES or output_bytes > _OUTPUT_BYTES
        if answer_bytes > config.max_answer_bytes:
            raise InvalidInput(
                f"The answer to this request has about {answer_bytes} bytes, at most {config.max_answer_bytes} are "
                "written for one request",
                field=self.text_fields[-1],
                hint="ask for fewer results, or send several requests; the endpoint's option max_answer_bytes sets "
                "the limit",
            )
        return prepared

    def _refuse_growing(self, texts: Texts, field: str) -> None:
        if self.tokenizer.growth <= _GROWTH:
            return
        most = max(self.config.max_chars, _GROWTH * total_chars(texts))
        if self.tokenizer.outgrows(texts, most):
            raise InvalidInput(
                f"{field} has more than {most} characters once the model's normalizer has replaced some by several",
                field=field,
                hint="shorten it, or send several requests",
            )

    def _refuse_unknown_ids(self, ids: Sequence[int], field: str) -> None:
        vocabulary = self.tokenizer.vocab_size
        if ids and not 0 <= min(ids) <= max(ids) < vocabulary:
            raise InvalidInput(
                f"{field} has ids that are not in the model's vocabulary of {vocabulary}",
                field=field,
                hint="token ids must come from the model's own tokenizer; send text if in doubt",
            )

    def _refuse_empty(self, rows: Sequence[Encoded]) -> None:
        if any(row.n_tokens == 0 for row in rows):
            name = self.text_fields[0]
            raise InvalidInput(f"{name} has no tokens: the model has nothing to read", field=name)

    def _refuse_truncated(self, rows: Sequence[Encoded], request: ParsedRequest) -> None:
        for i, row in enumerate(rows):
            if row.truncated:
                field = self.head.field_of(request, i)
                raise TooLong(
                    f"{field} is longer than the {self.config.max_length} tokens this endpoint takes",
                    field=field,
                    hint="shorten or split it",
                )


def _sizes(outputs: Tensors) -> tuple[int, float]:
    """Return bytes per row of outputs without tokens ([rows], [rows, size]), and bytes per token of the others."""
    per_row, per_token = 0, 0.0
    for tensor in outputs.values():
        if tensor.ndim > 2 and tensor.shape[0] and tensor.shape[1]:
            per_token += tensor.nbytes / (tensor.shape[0] * tensor.shape[1])
        elif len(tensor):
            per_row += tensor.nbytes // len(tensor)
    return per_row, per_token

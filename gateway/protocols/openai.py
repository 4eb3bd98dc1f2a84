"""OpenAI's request forms over the same endpoints: embeddings and the list of models.

``model`` is the endpoint's url (``sentiment``, ``sentiment/2``) or a canary's name. Pure: bodies in, bodies out.
"""

from __future__ import annotations

import base64
import time
from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np

from gateway.errors import InputRefused
from gateway.handlers.endpoint import Endpoint, translate
from gateway.path.call import Call
from gateway.path.routing.snapshot import Snapshot
from gateway.protocols.huggingface import refuse_other_fields, shorten, whole_number
from gateway.protocols.json_body import dumps, require_field
from gateway.spec import normalize_url
from gateway.trace import Trace
from preprocessing.config import EMBEDDINGS
from preprocessing.errors import PreprocessingError
from preprocessing.types import Prepared

_OWNER: Final = "triton-gateway"
HARMLESS: Final = (
    "user", "metadata", "safety_identifier", "service_tier", "prompt_cache_key", "prompt_cache_retention", "request_id",
    "priority",
)  # fmt: skip
"""Fields of OpenAI's and vLLM's requests that say who asks, or how soon; they change no answer and are ignored."""
_FIELDS: Final = ("model", "input", "encoding_format", "dimensions")


class EmbeddingsCall(Call):
    """``POST /v1/embeddings``: texts, or lists of token ids of the model's tokenizer, to vectors."""

    form = '{"model": "NAME", "input": ["…", "…"]}'
    """An example of a body."""

    def __init__(self, body: object) -> None:
        """Read ``body``. Raises ``InputRefused``."""
        if not isinstance(body, dict):
            raise InputRefused("the body must be an object", hint=f"send {self.form}")
        require_field(body, "input", self.form)
        refuse_other_fields(body, _FIELDS, {}, HARMLESS)
        self._model = model_of(body)
        self.path = normalize_url(self._model, None)
        self._format = body.get("encoding_format") or "float"
        if self._format not in ("float", "base64"):
            raise InputRefused("encoding_format must be float or base64")
        size = body.get("dimensions")
        self._size = None if size is None else whole_number(size, "dimensions")
        self._texts, self._ids = texts_or_ids(body["input"], "input")

    def question(self, endpoint: Endpoint) -> Any:
        """See ``Call.question``. Token ids bypass the tokenizer."""
        if endpoint.task != EMBEDDINGS:
            what = f"does {endpoint.task}" if endpoint.task else "has no text task"
            raise InputRefused(f"{self._model} {what}, not embeddings", hint="GET /v1/models lists what is served")
        return {"text": self._texts} if self._ids is None else self._rows(endpoint, self._ids)

    def render(self, answer: Any, endpoint: Endpoint, trace: Trace, outputs: Any) -> bytes:
        """See ``Call.render``."""
        del endpoint, outputs
        vectors = answer["embeddings"]
        if self._size is not None:
            vectors = shorten(vectors, self._size)
        rows = [base64.b64encode(np.ascontiguousarray(v, dtype="<f4").tobytes()).decode() for v in vectors] \
            if self._format == "base64" else list(vectors)  # fmt: skip
        tokens = sum(answer["tokens"]) if "tokens" in answer else trace.tokens
        return dumps({
            "object": "list",
            "data": [{"object": "embedding", "index": i, "embedding": row} for i, row in enumerate(rows)],
            "model": self._model,
            "usage": {"prompt_tokens": tokens, "total_tokens": tokens},
        })  # fmt: skip

    def _rows(self, endpoint: Endpoint, several: Sequence[Sequence[int]]) -> Prepared:
        handler = endpoint.text
        if handler is None:
            raise InputRefused("this endpoint does not take token ids", hint="send text")
        try:
            return handler.processor.prepare_ids(several)
        except PreprocessingError as error:
            raise translate(error) from error


def model_of(body: Mapping[str, Any]) -> str:
    """Return the field ``model``. Raises ``InputRefused``."""
    model = body.get("model")
    if not isinstance(model, str) or not model.strip("/ "):
        raise InputRefused("the field model must name an endpoint", hint="GET /v1/models lists them")
    return model


def names(snapshot: Snapshot) -> list[str]:
    """Return all names that a request can use: canaries, endpoint urls and bare names, sorted."""
    return sorted(snapshot.names())


def models(snapshot: Snapshot, started: int) -> dict[str, Any]:
    """Return the answer to ``GET /v1/models``; ``models`` is KServe's name for the list."""
    found = names(snapshot)
    return {"object": "list", "data": [_model(name, started) for name in found], "models": found}


def model(snapshot: Snapshot, path: str, started: int) -> dict[str, Any]:
    """Return the answer to ``GET /v1/models/{path}``; ``name`` and ``ready`` are KServe's fields.

    Raises the same errors as ``Snapshot.resolve``.
    """
    snapshot.resolve(path)
    return {**_model(path, started), "name": path, "ready": True}


def now() -> int:
    """Return the Unix time in whole seconds, as in OpenAI's answers."""
    return int(time.time())


def _model(name: str, started: int) -> dict[str, Any]:
    return {"id": name, "object": "model", "created": started, "owned_by": _OWNER}


def texts_or_ids(value: object, field: str) -> tuple[list[str] | None, list[Sequence[int]] | None]:
    """Return (texts, None) or (None, lists of token ids) from the value of ``field``. Raises ``InputRefused``."""
    if isinstance(value, str):
        return [value], None
    if not isinstance(value, list) or not value:
        raise InputRefused(f"{field} must be a text, a list of texts, or token ids", hint='send a text or ["…", "…"]')
    if all(isinstance(item, str) for item in value):
        return value, None
    if _are_ids(value):
        return None, [value]
    if all(isinstance(item, list) and item and _are_ids(item) for item in value):
        return None, value
    raise InputRefused(f"{field} must be texts, or lists of token ids, not both", hint='send a text or ["…", "…"]')


def _are_ids(value: Sequence[object]) -> bool:
    return all(isinstance(item, int) and not isinstance(item, bool) for item in value)

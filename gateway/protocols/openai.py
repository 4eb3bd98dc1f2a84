"""OpenAI's request forms over the same endpoints: embeddings and the list of models.

``model`` is the endpoint's url (``sentiment``, ``sentiment/2``) or a canary's name. Pure: bodies in, bodies out.
"""

from __future__ import annotations

import base64
import time
from typing import Any, Final

import numpy as np

from gateway.errors import InputRefused
from gateway.handlers.endpoint import Endpoint
from gateway.path.call import Call
from gateway.path.routing import Snapshot
from gateway.protocols.fields import (
    HARMLESS,
    model_of,
    object_of,
    refuse_other_fields,
    require_task,
    rows_of,
    texts_or_ids,
    whole_number,
)
from gateway.protocols.huggingface import shorten
from gateway.protocols.json_body import dumps
from gateway.spec import normalize_url
from gateway.trace import Trace
from preprocessing.config import EMBEDDINGS

_OWNER: Final = "triton-gateway"
_FIELDS: Final = ("model", "input", "encoding_format", "dimensions")


class EmbeddingsCall(Call):
    """``POST /v1/embeddings``: texts, or lists of token ids of the model's tokenizer, to vectors."""

    form = '{"model": "NAME", "input": ["…", "…"]}'
    """An example of a body."""

    def __init__(self, body: object) -> None:
        """Read ``body``. Raises ``InputRefused``."""
        fields = object_of(body, self.form, "input")
        refuse_other_fields(fields, _FIELDS, harmless=HARMLESS)
        self._model = model_of(fields)
        self.path = normalize_url(self._model, None)
        self._format = fields.get("encoding_format") or "float"
        if self._format not in ("float", "base64"):
            raise InputRefused("encoding_format must be float or base64")
        self._size = whole_number(fields, "dimensions")
        self._texts, self._ids = texts_or_ids(fields["input"], "input")

    def question(self, endpoint: Endpoint) -> Any:
        """See ``Call.question``. Token ids bypass the tokenizer."""
        require_task(endpoint, EMBEDDINGS, self._model, "embeddings")
        return {"text": self._texts} if self._ids is None else rows_of(endpoint, self._ids)

    def render(self, answer: Any, endpoint: Endpoint, trace: Trace) -> bytes:
        """See ``Call.render``."""
        del endpoint
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


def models(snapshot: Snapshot, started: int) -> dict[str, Any]:
    """Return the answer to ``GET /v1/models``; ``models`` is KServe's name for the list."""
    found = sorted(snapshot.names())
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

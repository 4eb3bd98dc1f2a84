"""Cohere's and Jina's requests to rank documents: ``POST /v1/rerank`` and ``/v2/rerank``.

``model`` names the endpoint. An answer has the fields of both APIs, so the clients of both can read it. Pure.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from typing import Any, Final

from gateway.handlers.endpoint import Endpoint
from gateway.path.call import Call
from gateway.protocols.fields import (
    HARMLESS,
    flag,
    model_of,
    object_of,
    refuse_other_fields,
    require_task,
    whole_number,
)
from gateway.protocols.json_body import dumps
from gateway.protocols.tei import refuse_empty
from gateway.spec import normalize_url
from gateway.trace import Trace
from preprocessing.config import RANKING

_FIELDS: Final = ("model", "query", "documents", "top_n", "return_documents", "truncation", "max_tokens_per_doc")
_NEUTRAL: Final[Mapping[str, tuple[object, ...]]] = {
    "max_chunks_per_doc": (1,), "rank_fields": (["text"],), "relevant_spans": (),
    "return_embeddings": (False,), "stream": (False,),
}  # fmt: skip
"""Fields that are not supported → their values that ask for nothing and are accepted."""


class RerankCall(Call):
    """A query and documents to the indexes of the documents, best first.

    ``version`` is the API's, 1 or 2. ``path``, if given, is the endpoint; otherwise the field ``model`` names it.
    """

    form = '{"model": "NAME", "query": "…", "documents": ["…", "…"]}'
    """An example of a body."""

    def __init__(self, body: object, version: int, path: str | None = None) -> None:
        """Read ``body``. Raises ``InputRefused``."""
        self._body = fields = object_of(body, self.form, "query", "documents")
        self._version = version
        self.path = normalize_url(model_of(fields), None) if path is None else path
        refuse_other_fields(fields, _FIELDS, _NEUTRAL, HARMLESS)
        refuse_empty(fields["documents"], "documents")
        self._top_n = whole_number(fields, "top_n")
        # Jina's servers return the documents by default, Cohere's version 2 never does. More fields do no harm.
        self._returns = flag(fields, "return_documents", default=version == 1)

    def question(self, endpoint: Endpoint) -> Any:
        """See ``Call.question``."""
        require_task(endpoint, RANKING, self.path, "ranking")
        body = self._body
        parameters: dict[str, Any] = {"function_to_apply": "sigmoid", "return_documents": self._returns}
        if self._top_n is not None:
            parameters["top_n"] = self._top_n
        if body.get("truncation") is not None:
            parameters["truncate"] = flag(body, "truncation", default=True)
        if body.get("max_tokens_per_doc") is not None:
            parameters["max_length"] = whole_number(body, "max_tokens_per_doc")
        return {"query": body["query"], "documents": body["documents"], "parameters": parameters}

    def render(self, answer: Any, endpoint: Endpoint, trace: Trace) -> bytes:
        """See ``Call.render``."""
        del endpoint, trace
        results = [
            {"index": result["index"], "relevance_score": result["score"],
             **({"document": {"text": result["document"]}} if "document" in result else {})}
            for result in answer["results"]
        ]  # fmt: skip
        tokens = answer["tokens"]
        return dumps({
            "id": str(uuid.uuid4()),
            "model": self.path,
            "results": results,
            "usage": {"prompt_tokens": tokens, "total_tokens": tokens},
            "meta": {"api_version": {"version": str(self._version)}, "billed_units": {"search_units": 1},
                     "tokens": {"input_tokens": tokens}},
        })  # fmt: skip

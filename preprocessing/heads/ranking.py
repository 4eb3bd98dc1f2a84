"""Ranking: orders documents by relevance to a query, like sentence-transformers' `CrossEncoder.rank`.

Request: `{"query": "…", "documents": ["…", …], "parameters": {"top_n": 3, "return_documents": true}}`, parameters
optional; several at once with a list of queries and a list of lists of documents.

Answer: `{"results": [{"index": 2, "score": 0.98, "document": "…"}, …], "tokens": n}`, best first; `index` is the
document's place in the request, `document` is there if `return_documents` is on, `"truncated": true` in a result
whose query and document were cut. For several queries: `{"results": [{"results": […]}, …], "tokens": [n, …]}`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, Literal, cast

import numpy as np

from preprocessing.activations import sigmoid
from preprocessing.config import RANKING, TaskConfig
from preprocessing.errors import InvalidBundle, InvalidInput, InvalidOutput
from preprocessing.heads.base import Head, group_counts, read_body, read_text, refuse_many, refuse_non_finite
from preprocessing.parameters import Count, Parameters
from preprocessing.types import ParsedRequest, Prepared, Tensors

_EXAMPLE: Final = 'send {"query": "…", "documents": ["…", "…"]}'


class _Parameters(Parameters):
    top_n: Count | None = None
    return_documents: bool = False
    function_to_apply: Literal["sigmoid", "none"] | None = None


class Ranking(Head):
    """The head of cross-encoders: one score per pair of query and document."""

    task = RANKING
    text_fields = ("query", "documents")
    parameters = _Parameters
    example: Mapping[str, object] = {
        "query": "Who wrote Faust?", "documents": ["Goethe wrote Faust.", "The weather is fine."],
    }  # fmt: skip

    def __init__(self, config: TaskConfig) -> None:
        if len(config.labels) > 1:
            raise InvalidBundle(
                f"Ranking needs a model with one score per pair, this one has {len(config.labels)} labels",
                hint="serve it as text-classification",
            )
        super().__init__(config)

    def parse(self, body: object) -> ParsedRequest:
        """Return pairs of each query with each of its documents."""
        found, parameters = read_body(body, ("query", "documents"), ("query", "documents"), _EXAMPLE)
        asked = _Parameters.of(parameters)
        query, documents = found["query"], found["documents"]
        is_batch = isinstance(query, list)
        if is_batch:
            if not query or not isinstance(documents, list) or len(documents) != len(query):
                raise InvalidInput(
                    "query is a list, so documents must be a list of lists, one per query", field="documents"
                )
            lists = [
                (read_text(q, f"query[{i}]", self._config), self._documents(d, f"documents[{i}]"))
                for i, (q, d) in enumerate(zip(query, documents, strict=True))
            ]
        else:
            lists = [(read_text(query, "query", self._config), self._documents(documents, "documents"))]
        pairs = [(q, document) for q, own in lists for document in own]
        refuse_many(len(pairs), self._config, "documents")
        options = {
            "sizes": [len(own) for _, own in lists],
            "top_n": asked.top_n,
            "return_documents": asked.return_documents,
            "function_to_apply": asked.function_to_apply,
        }
        return ParsedRequest(pairs, is_batch, options)

    def field_of(self, request: ParsedRequest, row: int) -> str:
        """Return the document's name; with several queries, also the query's."""
        for query, size in enumerate(request.options["sizes"]):
            if row < size:
                return f"documents[{query}][{row}]" if request.is_batch else f"documents[{row}]"
            row -= size
        return "documents"

    def answer_bytes(self, prepared: Prepared, output_bytes: int) -> int:
        """Estimate: a score per document, and the documents if requested."""
        del output_bytes
        pairs = cast("Sequence[tuple[str, str]]", prepared.request.texts)
        chars = sum(len(document) for _, document in pairs) if prepared.request.options["return_documents"] else 0
        return len(pairs) * 50 + chars

    def decode(self, outputs: Tensors, prepared: Prepared) -> list[Mapping[str, Any]]:
        """Return each query's documents, best first; equal scores in the request's order."""
        options, rows, pairs = prepared.request.options, prepared.rows, prepared.request.texts
        name, logits = self.take(outputs)
        if logits.size != len(rows) or len(logits) != len(rows):
            raise InvalidOutput(
                f"Output {name} has shape {list(logits.shape)} for {len(rows)} pairs", hint="expected one score each"
            )
        refuse_non_finite(name, logits)
        raw = logits.reshape(-1).astype(np.float32, copy=False)
        function = options["function_to_apply"] or self._config.activation
        scores = sigmoid(raw) if function == "sigmoid" else raw
        results: list[Mapping[str, Any]] = []
        start = 0
        for size in options["sizes"]:
            # Sorted by raw scores, because the sigmoid of large scores is equal.
            order = np.argsort(-raw[start : start + size], kind="stable")[: options["top_n"]]
            ranked: list[dict[str, Any]] = []
            for index in order.tolist():
                result = {"index": index, "score": float(scores[start + index])}
                if options["return_documents"]:
                    result["document"] = pairs[start + index][1]
                if rows[start + index].truncated:
                    result["truncated"] = True
                ranked.append(result)
            results.append({"results": ranked})
            start += size
        return results

    def counted(self, prepared: Prepared) -> dict[str, object]:
        """Count the tokens of all pairs of a query."""
        groups, start = [], 0
        for size in prepared.request.options["sizes"]:
            groups.append(prepared.rows[start : start + size])
            start += size
        counted = group_counts(prepared, groups)
        counted.pop("truncated", None)  # each result has its own
        return counted

    def _documents(self, value: object, field: str) -> list[str]:
        if not isinstance(value, list) or not value:
            raise InvalidInput(f"{field} must be a list of at least one string", field=field, hint=_EXAMPLE)
        # The clients of Cohere and Jina send a document as an object with only its text.
        texts = [item["text"] if isinstance(item, dict) and set(item) == {"text"} else item for item in value]
        return [read_text(text, f"{field}[{i}]", self._config) for i, text in enumerate(texts)]

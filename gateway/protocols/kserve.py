"""KServe's first protocol: ``POST /v1/models/{name}:predict`` with ``{"instances": […]}``, answered with
``{"predictions": […]}``. Kept for clients that still speak it; the Open Inference Protocol is its successor.
"""

from __future__ import annotations

from typing import Any

from gateway.errors import InputRefused
from gateway.handlers.endpoint import Endpoint
from gateway.path.call import Call, Reply
from gateway.protocols.fields import object_of, refuse_other_fields
from gateway.protocols.json_body import dumps
from gateway.trace import Trace


class PredictCall(Call):
    """Instances are texts (or ``{"text": …}``) for a text task; a hook or a plain model gets the body unchanged."""

    form = '{"instances": ["…", "…"]}'
    """An example of a body."""

    def __init__(self, body: object, url: str) -> None:
        """Take a decoded body. Raises ``InputRefused``."""
        self.path = url
        self._body = object_of(body, self.form, "instances")
        if not isinstance(self._body["instances"], list):
            raise InputRefused("instances must be a list", hint=f"send {self.form}")

    def question(self, endpoint: Endpoint) -> Any:
        """See ``Call.question``."""
        if endpoint.text is None:
            return self._body
        refuse_other_fields(self._body, ("instances", "parameters"), harmless=("signature_name",))
        texts = [item["text"] if isinstance(item, dict) and set(item) == {"text"} else item
                 for item in self._body["instances"]]  # fmt: skip
        parameters = self._body.get("parameters")
        return {"text": texts} if parameters is None else {"text": texts, "parameters": parameters}

    def render(self, answer: Any, endpoint: Endpoint, trace: Trace) -> bytes | Reply:
        """See ``Call.render``."""
        del trace
        if isinstance(answer, dict) and "predictions" in answer:
            return dumps(answer)
        if endpoint.text is not None:
            return dumps({"predictions": answer["embeddings"] if "embeddings" in answer else answer["results"]})
        return dumps({"predictions": answer})

"""One API call as the endpoints see it. Built by `app`, handed to a handler, answered with the `data` of the reply."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from deploy.controlplane.envelope import EndpointName, JsonObject, missing_fields, validation_error
from deploy.controlplane.tokens import Identity


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """The body of one call and who sent it.

    `lines` are the objects of a JSON-lines body (`events.add_batch`); `client` is the `X-ClearML-Client` header.
    """

    endpoint: EndpointName
    identity: Identity
    body: JsonObject
    lines: list[JsonObject] = field(default_factory=list)
    client: str = ""
    query: dict[str, str] = field(default_factory=dict)

    def text(self, name: str) -> str:
        """A required text field.

        Raises:
            ApiError: 400/11 when it is missing, 400/12 when it is no text.
        """
        value = self.body.get(name)
        if value is None or value == "":
            raise missing_fields(name)
        if not isinstance(value, str):
            raise validation_error(f"{name} must be a string")
        return value

    def items(self, name: str) -> list[Any]:
        """A list field, empty when missing; a single value counts as a list of one."""
        value = self.body.get(name)
        if value is None:
            return []
        return value if isinstance(value, list) else [value]

    def flag(self, name: str, *, default: bool = False) -> bool:
        """A boolean field; `fields` has seen to it that it is one."""
        value = self.body.get(name)
        return default if value is None else value is True


Handler = Callable[[Call], JsonObject]

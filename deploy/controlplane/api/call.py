"""One API call as endpoints see it. `app` builds it and passes it to a handler, which returns the reply's `data`."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from deploy.controlplane.envelope import EndpointName, JsonObject, missing_fields, validation_error
from deploy.controlplane.tokens import Identity


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """The body of one call and its sender.

    `lines` are the objects of a JSON-lines body (`events.add_batch`).
    """

    endpoint: EndpointName
    identity: Identity
    body: JsonObject
    lines: list[JsonObject] = field(default_factory=list)
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
        """A list field, empty if missing. A single value counts as a list of one."""
        value = self.body.get(name)
        if value is None:
            return []
        return value if isinstance(value, list) else [value]

    def flag(self, name: str, *, default: bool = False) -> bool:
        """A boolean field; `fields` has checked its type."""
        value = self.body.get(name)
        return default if value is None else value is True


Handler = Callable[[Call], JsonObject]

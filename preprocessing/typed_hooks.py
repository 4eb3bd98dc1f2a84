"""Typed hooks: pydantic models declare the request and answer of a ``Preprocess`` class, and bodies are validated.

The request's model is the annotation of the first stage's body (the hook then gets an instance), or a class ``Request``
inside ``Preprocess`` (the hook then gets the validated values as a dict, as in clearml-serving). The answer's model is
the return annotation of the last stage, or a class ``Response`` inside. pydantic is never imported here: code with such
models has imported it.
"""

from __future__ import annotations

import inspect
import sys
import typing
from collections.abc import Callable
from typing import Any

from preprocessing.errors import UserCodeFailed, UserCodeLoadError, UserCodeRefused

_SHOWN = 5


class Typed:
    """The declarations of one class; ``request`` and ``response`` are pydantic models or None."""

    def __init__(self, instance: object, first: Callable[..., Any] | None, last: Callable[..., Any] | None) -> None:
        self.request: Any = None
        self.response: Any = None
        self._as_object = False
        if "pydantic" not in sys.modules:
            return
        if first is not None and (model := _annotated_body(instance, first)) is not None:
            self.request, self._as_object = model, True
        else:
            self.request = _model(getattr(instance, "Request", None))
        self.response = (_annotated_return(instance, last) if last is not None else None) or _model(
            getattr(instance, "Response", None)
        )

    def check(self, body: object, stage: str) -> object:
        """Return the body for the hook. Raises ``UserCodeRefused`` with the name of each invalid field."""
        if self.request is None or isinstance(body, self.request):
            return body
        try:
            found = self.request.model_validate(body)
        except ValueError as error:
            raise UserCodeRefused(
                f"the body does not fit: {_faults(error)}", stage=stage,
                hint="the request's schema is in /openapi.json",
            ) from error  # fmt: skip
        return found if self._as_object else found.model_dump()

    def render(self, answer: object, stage: str) -> object:
        """Return the answer as plain values. Raises ``UserCodeFailed`` if it does not match the response model."""
        if self.response is None:
            return answer
        try:
            found = answer if isinstance(answer, self.response) else self.response.model_validate(answer)
        except ValueError as error:
            raise UserCodeFailed(
                f"{stage} returned what its {self.response.__name__} does not allow: {_faults(error)}",
                stage=stage, original=error,
            ) from error  # fmt: skip
        return found.model_dump(mode="json")

    def schemas(self) -> dict[str, Any]:
        """Return ``request_schema`` and ``response_schema`` if declared. Raises ``UserCodeLoadError``."""
        found = {}
        for name, model, mode in (
            ("request_schema", self.request, "validation"),
            ("response_schema", self.response, "serialization"),
        ):
            if model is None:
                continue
            try:
                found[name] = model.model_json_schema(mode=mode)
            except Exception as error:  # pydantic's errors, and anything that users' types raise
                raise UserCodeLoadError(
                    f"{model.__name__} has no JSON schema: {error}", stage="load",
                    hint="use field types that have a JSON form",
                ) from error  # fmt: skip
        return found


def _model(found: object) -> Any:
    base = sys.modules["pydantic"].BaseModel
    return found if isinstance(found, type) and issubclass(found, base) and found is not base else None


def _hints(instance: object, method: Callable[..., Any]) -> dict[str, Any]:
    function = inspect.unwrap(getattr(method, "__func__", method))
    try:
        return typing.get_type_hints(function, localns=dict(vars(type(instance))))
    except Exception:  # noqa: BLE001 annotations are user code, and may name anything
        return dict(getattr(function, "__annotations__", {}))


def _annotated_body(instance: object, method: Callable[..., Any]) -> Any:
    try:
        names = list(inspect.signature(method).parameters)
    except (TypeError, ValueError):
        return None
    return _model(_hints(instance, method).get(names[0])) if names else None


def _annotated_return(instance: object, method: Callable[..., Any]) -> Any:
    return _model(_hints(instance, method).get("return"))


def _faults(error: ValueError) -> str:
    errors = getattr(error, "errors", None)
    if not callable(errors):
        return str(error)
    # Values are left out: messages must not contain a request's text.
    found = errors(include_url=False, include_input=False, include_context=False)
    shown = [f"{'.'.join(str(p) for p in e['loc']) or 'body'}: {e['msg']}" for e in found[:_SHOWN]]
    return "; ".join(shown) + (f"; and {len(found) - _SHOWN} more" if len(found) > _SHOWN else "")

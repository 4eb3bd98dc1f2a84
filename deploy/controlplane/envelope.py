"""ClearML's reply envelope and its error codes.

Owns the wire form of every answer of the API: `{"meta": {...}, "data": {...}}`, and `ApiError`, the one exception by
which an endpoint refuses a call. Called by `app` (to wrap) and by every module under `api/` (to refuse). Never does
I/O.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

JsonObject = dict[str, Any]

ENDPOINT_VERSION = "1.0"
API_VERSION = "2.34"


class ApiError(Exception):
    """A refused call: HTTP status, ClearML subcode and the message ClearML's clients show to people."""

    def __init__(self, code: int, subcode: int, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.subcode = subcode
        self.message = message


class StoreBusy(Exception):
    """The store did not give the write lock in time. Answered with 503, which ClearML's clients retry by themselves."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EndpointName:
    """The requested endpoint, e.g. `tasks.edit`, and the version in the path (clients send 2.13 … 2.34; all get the
    same answers).
    """

    name: str
    requested_version: str = API_VERSION


def reply(endpoint: EndpointName, data: Mapping[str, Any], *, call_id: str) -> JsonObject:
    """Wrap `data` into a successful answer."""
    return {"meta": _meta(endpoint, call_id, 200, 0, "OK"), "data": dict(data)}


def refusal(endpoint: EndpointName, error: ApiError, *, call_id: str) -> JsonObject:
    """Wrap `error` into ClearML's failed answer; `data` is always present and empty."""
    return {"meta": _meta(endpoint, call_id, error.code, error.subcode, error.message), "data": {}}


def _meta(endpoint: EndpointName, call_id: str, code: int, subcode: int, message: str) -> JsonObject:
    return {
        "id": call_id,
        "trx": call_id,
        "endpoint": {
            "name": endpoint.name,
            "requested_version": endpoint.requested_version,
            "actual_version": ENDPOINT_VERSION,
        },
        "result_code": code,
        "result_subcode": subcode,
        "result_msg": message,
        "error_stack": None,
        "error_data": {},
    }


def unknown_endpoint(name: str) -> ApiError:
    """404/0: the call is not implemented here (docs/clearml-compatibility.md lists what is)."""
    service, _, action = name.partition(".")
    return ApiError(404, 0, f"Unable to find endpoint for service {service} and action {action}")


def missing_fields(*names: str) -> ApiError:
    """400/11."""
    return ApiError(400, 11, f"Missing required fields: {', '.join(names)}")


def validation_error(why: str) -> ApiError:
    """400/12."""
    return ApiError(400, 12, f"Validation error ({why})")


def invalid_task_id(task_id: str) -> ApiError:
    """400/101."""
    return ApiError(400, 101, f"Invalid task id: ids=({task_id})")


def invalid_task_status(*, task_id: str, current: str, wanted: str) -> ApiError:
    """400/110: the status machine does not allow this step without `force`."""
    return ApiError(
        400, 110, f"Invalid task status: status={current}, new_status={wanted}, task={task_id}; use force=true to skip"
    )


def unexpected_task_status(*, expected: str, current: str) -> ApiError:
    """400/110: this part of a Task cannot be changed any more."""
    return ApiError(400, 110, f"Invalid task status: expected={expected}, status={current}")


def invalid_model_id(model_id: str, company: str) -> ApiError:
    """400/201."""
    return ApiError(400, 201, f"Invalid model id (no such public or company model): id={model_id}, company={company}")


def invalid_project_id(project_id: str) -> ApiError:
    """400/401."""
    return ApiError(400, 401, f"Invalid project id: id={project_id}")


def model_in_use(*, tasks: int) -> ApiError:
    """400/205."""
    return ApiError(
        400, 205, f"Model is used by tasks (as execution model, use force=True to delete): num_tasks={tasks}"
    )


def model_creating_task_exists(task_id: str) -> ApiError:
    """400/206."""
    return ApiError(
        400,
        206,
        f"Task that created this model exists (and published, use force=True to delete): task={task_id}",
    )


def too_short(field: str) -> ApiError:
    """400/800: names of tasks and models have at least three characters."""
    return ApiError(400, 800, f"Data validation error: {field}=String value is too short")


def not_unique(why: str, **values: str) -> ApiError:
    """400/801."""
    return ApiError(400, 801, f"{why}: {', '.join(f'{key}={value}' for key, value in values.items())}")


def events_not_added(why: str) -> ApiError:
    """400/131: not one event of the batch could be stored."""
    return ApiError(400, 131, f"Events not added: {why}")


def no_credentials() -> ApiError:
    """401/20."""
    return ApiError(401, 20, "Unauthorized (missing credentials)")


def malformed_credentials(why: str) -> ApiError:
    """401/21."""
    return ApiError(401, 21, f"Unauthorized (malformed credentials) ({why})")


def invalid_credentials() -> ApiError:
    """401/22."""
    return ApiError(401, 22, "Unauthorized (invalid credentials) (failed to locate provided credentials)")


def invalid_token(why: str) -> ApiError:
    """401/30."""
    return ApiError(401, 30, f"Invalid token ({why})")

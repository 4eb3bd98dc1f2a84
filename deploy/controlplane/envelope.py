"""ClearML's reply envelope `{"meta": {...}, "data": {...}}` and its errors.

`app` wraps answers with it, and every module under `api/` refuses with `ApiError`, the one exception for that.
"""

import secrets
from collections.abc import Mapping
from typing import Any

JsonObject = dict[str, Any]

API_VERSION = "2.34"


class ApiError(Exception):
    """A refused call: HTTP status, ClearML's subcode and the message that its clients show to people."""

    def __init__(self, code: int, subcode: int, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.subcode = subcode
        self.message = message


def envelope(name: str, version: str, outcome: Mapping[str, Any] | ApiError) -> JsonObject:
    """What goes back to a call of endpoint `name`: its data, or the refusal with empty data."""
    refused = outcome if isinstance(outcome, ApiError) else None
    call_id = secrets.token_hex(16)
    meta = {
        "id": call_id,
        "trx": call_id,
        "endpoint": {"name": name, "requested_version": version, "actual_version": "1.0"},
        "result_code": refused.code if refused else 200,
        "result_subcode": refused.subcode if refused else 0,
        "result_msg": refused.message if refused else "OK",
        "error_stack": None,
        "error_data": {},
    }
    return {"meta": meta, "data": {} if isinstance(outcome, ApiError) else dict(outcome)}


def missing_fields(*names: str) -> ApiError:
    """400/11."""
    return ApiError(400, 11, f"Missing required fields: {', '.join(names)}")


def validation_error(why: str) -> ApiError:
    """400/12."""
    return ApiError(400, 12, f"Validation error ({why})")


def invalid_task_status(task_id: str, *, current: str, wanted: str) -> ApiError:
    """400/110: the status machine does not allow this step without `force`."""
    return ApiError(
        400, 110, f"Invalid task status: status={current}, new_status={wanted}, task={task_id}; use force=true to skip"
    )


def too_short(field: str) -> ApiError:
    """400/800: names of tasks and models have at least three characters."""
    return ApiError(400, 800, f"Data validation error: {field}=String value is too short")

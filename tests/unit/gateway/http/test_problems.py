"""The table from error kinds to statuses is complete."""

from __future__ import annotations

from gateway import errors
from gateway.errors import STATUS


def _all(error: type[errors.GatewayError]) -> list[type[errors.GatewayError]]:
    return [error, *(e for sub in error.__subclasses__() for e in _all(sub))]


def test_every_error_has_a_status() -> None:
    """Every error of the tree has a status, and every status belongs to an error."""
    assert {e.kind for e in _all(errors.GatewayError)} == set(STATUS)


def test_only_client_errors_are_4xx() -> None:
    """RequestError is 4xx. Other errors are 5xx, except shedding and a client that left."""
    for error in _all(errors.RequestError):
        assert 400 <= STATUS[error.kind] < 500
    for error in _all(errors.Unavailable):
        assert 503 == STATUS[error.kind]

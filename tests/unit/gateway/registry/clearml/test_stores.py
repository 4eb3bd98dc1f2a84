"""Errors of cloud stores: final with a hint, or temporary."""

from __future__ import annotations

from http import HTTPStatus
from types import SimpleNamespace
from typing import Any

import pytest

from gateway.errors import RegistryRefused, RegistryUnavailable
from gateway.registry.clearml import stores

ADDRESS = "azure://models.blob.core.windows.net/bundles/authors/model.zip"


class Blob:
    """A blob whose library fails with an error."""

    generation, size, etag, name = 1, 9, "tag", "bundles"

    def __init__(self, *errors: Exception | None) -> None:
        self._errors = list(errors)
        self.blob_service = self.bucket = self

    def reload(self, *_: object, **__: object) -> Any:
        """Fail if it is this call's turn."""
        if error := self._errors.pop(0):
            raise error
        return self

    get_blob_properties = download_as_bytes = download_blob = reload

    def blob(self, *_: object, **__: object) -> Any:
        """Return itself."""
        return self

    get_blob_client = blob


class AzureError(Exception):
    """An error with a status, as azure.core raises it."""

    def __init__(self, status: int) -> None:
        super().__init__(f"Operation returned an invalid status {status}")
        self.status_code = status


class GoogleError(Exception):
    """An error as google.api_core raises it."""

    def __init__(self, status: int) -> None:
        super().__init__("GET https://storage.googleapis.com/…")
        self.code = HTTPStatus(status)


class ClientError(Exception):
    """An error as botocore raises it."""

    def __init__(self, status: int) -> None:
        super().__init__("An error occurred")
        self.response = {"ResponseMetadata": {"HTTPStatusCode": status}}


class NoCredentialsError(Exception):
    """As botocore raises it."""


class InvalidOperation(Exception):
    """As the one of google.auth: anonymous credentials were refused."""


class DefaultCredentialsError(Exception):
    """An error as google.auth raises it."""


def ask(error: Exception) -> Any:
    """Return what is raised for an error of a library."""
    with pytest.raises((RegistryRefused, RegistryUnavailable)) as raised, stores._asking(ADDRESS):
        raise error
    assert ADDRESS in raised.value.message
    return raised.value


@pytest.mark.parametrize("store", [stores._in_azure, stores._in_google])
def test_errors_of_the_size_and_of_the_bytes_are_translated(store: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The bytes are asked for when they are read."""
    for errors in ((AzureError(404),), (None, AzureError(404))):
        driver = SimpleNamespace(_container=Blob(*errors), _normalize_object_name=str)
        monkeypatch.setattr(stores, "_helper", lambda _, driver=driver: driver)
        with pytest.raises(RegistryRefused, match="answers 404"):
            list(store(ADDRESS).read(0, 9))


@pytest.mark.parametrize("of", [ClientError, AzureError, GoogleError])
@pytest.mark.parametrize("status", [400, 401, 403, 404, 410])
def test_a_refusal_of_a_store_is_final(of: Any, status: int) -> None:
    """With a hint if credentials are the reason."""
    refused = ask(of(status))
    assert isinstance(refused, RegistryRefused)
    assert (status < 404) == ("clearml.conf" in refused.hint)


@pytest.mark.parametrize("of", [ClientError, AzureError, GoogleError])
@pytest.mark.parametrize("status", [408, 412, 429, 500, 503])
def test_a_temporary_failure_of_a_store_is_retried(of: Any, status: int) -> None:
    """Also if the file was replaced while it was read."""
    later = ask(of(status))
    assert isinstance(later, RegistryUnavailable)
    assert (status == 412) == ("was replaced" in later.message)


def test_missing_credentials_are_final_and_connection_failures_are_not() -> None:
    """Whatever type the library raises."""
    assert isinstance(ask(DefaultCredentialsError("Your default credentials were not found")), RegistryRefused)
    assert isinstance(ask(NoCredentialsError("Unable to locate credentials")), RegistryRefused)
    assert isinstance(ask(InvalidOperation("Anonymous credentials cannot be refreshed.")), RegistryRefused)
    assert isinstance(ask(ConnectionResetError("reset by peer")), RegistryUnavailable)


def test_an_address_of_an_unknown_store_is_refused_with_the_known_ones() -> None:
    """It is not retried."""
    with pytest.raises(RegistryRefused) as refused:
        stores.opened("ftp://models/one.zip")
    assert "s3, gs or azure" in refused.value.hint

"""Errors of cloud stores: final with a hint, or temporary."""

from __future__ import annotations

from http import HTTPStatus
from typing import Any

import pytest

from gateway.errors import RegistryRefused, RegistryUnavailable
from gateway.registry.clearml import stores

ADDRESS = "azure://models.blob.core.windows.net/bundles/authors/model.zip"


class Blob:
    """A blob, or a client of S3, whose library fails with an error."""

    generation = 1

    def __init__(self, error: Exception) -> None:
        self._error = error

    def get_blob_properties(self, *_: object, **__: object) -> Any:
        """Fail."""
        raise self._error

    reload = download_as_bytes = download_blob = head_object = get_object = get_blob_properties


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


@pytest.fixture(params=[stores.InS3, stores.InAzure, stores.InGoogle])
def ask(request: pytest.FixtureRequest) -> Any:
    """Read size and bytes of what fails. Both raise the same error."""

    def asked(error: Exception) -> Exception:
        made = object.__new__(request.param)
        made._address, made._limits, made._same, made._named = ADDRESS, {}, {}, {}
        made._blob = made._client = Blob(error)
        found = []
        for attempt in (made.size, lambda: list(made.read(0, 9))):
            with pytest.raises((RegistryRefused, RegistryUnavailable)) as raised:
                attempt()
            found.append(raised.value)
        assert type(found[0]) is type(found[1])
        assert ADDRESS in found[0].message
        return found[0]

    return asked


@pytest.mark.parametrize("of", [ClientError, AzureError, GoogleError])
@pytest.mark.parametrize("status", [400, 401, 403, 404, 410])
def test_a_refusal_of_a_store_is_final(ask: Any, of: Any, status: int) -> None:
    """With a hint if credentials are the reason."""
    refused = ask(of(status))
    assert isinstance(refused, RegistryRefused)
    assert (status < 404) == ("clearml.conf" in refused.hint)


@pytest.mark.parametrize("of", [ClientError, AzureError, GoogleError])
@pytest.mark.parametrize("status", [408, 412, 429, 500, 503])
def test_a_temporary_failure_of_a_store_is_retried(ask: Any, of: Any, status: int) -> None:
    """Also if the file was replaced while it was read."""
    later = ask(of(status))
    assert isinstance(later, RegistryUnavailable)
    assert (status == 412) == ("was replaced" in later.message)


def test_missing_credentials_are_final_and_connection_failures_are_not(ask: Any) -> None:
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

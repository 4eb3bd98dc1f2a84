"""What is made of a cloud's answer: no, with what to look at, or not now."""

from __future__ import annotations

from http import HTTPStatus
from typing import Any

import pytest

from gateway.errors import RegistryRefused, RegistryUnavailable
from gateway.registry.clearml import stores

ADDRESS = "azure://models.blob.core.windows.net/bundles/authors/model.zip"


class Blob:
    """A blob whose library fails with an error."""

    generation = 1

    def __init__(self, error: Exception) -> None:
        self._error = error

    def get_blob_properties(self, *_: object, **__: object) -> Any:
        """Fail."""
        raise self._error

    reload = download_as_bytes = download_blob = get_blob_properties


class AzureError(Exception):
    """As azure.core raises what has a status."""

    def __init__(self, status: int) -> None:
        super().__init__(f"Operation returned an invalid status {status}")
        self.status_code = status


class GoogleError(Exception):
    """As google.api_core raises it."""

    def __init__(self, status: int) -> None:
        super().__init__("GET https://storage.googleapis.com/…")
        self.code = HTTPStatus(status)


class DefaultCredentialsError(Exception):
    """As google.auth raises it."""


@pytest.fixture(params=[stores.InAzure, stores.InGoogle])
def ask(request: pytest.FixtureRequest) -> Any:
    """Ask a blob that fails for its size, then for its bytes; the error of each is the same."""

    def asked(error: Exception) -> Exception:
        made = object.__new__(request.param)
        made._address, made._limits, made._same, made._blob = ADDRESS, {}, {}, Blob(error)
        found = []
        for attempt in (made.size, lambda: list(made.read(0, 9))):
            with pytest.raises((RegistryRefused, RegistryUnavailable)) as raised:
                attempt()
            found.append(raised.value)
        assert type(found[0]) is type(found[1])
        assert ADDRESS in found[0].message
        return found[0]

    return asked


@pytest.mark.parametrize("of", [AzureError, GoogleError])
@pytest.mark.parametrize("status", [400, 401, 403, 404, 410])
def test_a_store_that_says_no_is_not_asked_again(ask: Any, of: Any, status: int) -> None:
    """With what to look at, if it is a matter of keys."""
    refused = ask(of(status))
    assert isinstance(refused, RegistryRefused)
    assert (status < 404) == ("clearml.conf" in refused.hint)


@pytest.mark.parametrize("of", [AzureError, GoogleError])
@pytest.mark.parametrize("status", [408, 412, 429, 500, 503])
def test_a_store_that_cannot_now_is_asked_again(ask: Any, of: Any, status: int) -> None:
    """Also one whose file was replaced while it was read."""
    later = ask(of(status))
    assert isinstance(later, RegistryUnavailable)
    assert (status == 412) == ("was replaced" in later.message)


def test_no_keys_at_all_are_a_no_and_a_connection_that_fails_is_not(ask: Any) -> None:
    """Whatever type a library has for it."""
    assert isinstance(ask(DefaultCredentialsError("Your default credentials were not found")), RegistryRefused)
    assert isinstance(ask(ConnectionResetError("reset by peer")), RegistryUnavailable)


def test_an_address_of_no_store_is_refused_with_those_there_are() -> None:
    """Not tried again."""
    with pytest.raises(RegistryRefused) as refused:
        stores.opened("ftp://models/one.zip")
    assert "s3, gs or azure" in refused.value.hint

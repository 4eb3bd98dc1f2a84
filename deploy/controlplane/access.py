"""Identifies the caller by access keys (Basic) or a token (Bearer), for the API and the file server.

`app` and `fileserver` call it before they do anything else with a request. A refusal never says which part of a key was
wrong.
"""

import base64
import binascii
import hmac

from deploy.controlplane.credentials import Credentials
from deploy.controlplane.envelope import ApiError, invalid_credentials, malformed_credentials, no_credentials
from deploy.controlplane.tokens import Identity, Tokens


class Access:
    """Checks the `Authorization` header."""

    def __init__(self, *, credentials: Credentials, tokens: Tokens) -> None:
        self._credentials = credentials
        self._tokens = tokens

    def identify(self, authorization: str | None) -> Identity:
        """The caller.

        Raises:
            ApiError: 401 with ClearML's subcode: 20 none given, 10 unknown scheme, 21 malformed, 22 wrong keys, 30
            bad token.
        """
        if not authorization:
            raise no_credentials()
        scheme, _, value = authorization.partition(" ")
        value = value.strip()
        if scheme.lower() == "bearer":
            return self._tokens.verify(value)
        if scheme.lower() != "basic":
            raise ApiError(401, 10, "Unauthorized (bad authentication header type)")
        return self._basic(value)

    def _basic(self, value: str) -> Identity:
        try:
            key, colon, secret = base64.b64decode(value, validate=True).decode("utf-8").partition(":")
        except (binascii.Error, UnicodeDecodeError, ValueError) as exc:
            raise malformed_credentials("not base64 of key:secret") from exc
        if not colon or not key or not secret:
            raise malformed_credentials("expected key:secret")
        # both are always compared, in constant time
        right_key = hmac.compare_digest(key.encode(), self._credentials.access_key.encode())
        right_secret = hmac.compare_digest(secret.encode(), self._credentials.secret_key.encode())
        if not (right_key and right_secret):
            raise invalid_credentials()
        return Identity(user=self._credentials.user, company=self._credentials.company)

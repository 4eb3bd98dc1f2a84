"""From credentials to a caller."""

from __future__ import annotations

import base64

import pytest

from gateway.callers.access import ANONYMOUS, Access
from gateway.callers.keys import Key, Stored, seconds
from gateway.errors import NotAuthenticated
from tests.unit.gateway.callers.test_keys import made


class Known:
    """An access that knows one key."""

    def __init__(self, **fields: str) -> None:
        self.now = 1_000_000.0
        self.refused: list[str] = []
        self.key, self.kept = made(**fields)
        self.access = Access(count=self.refused.append, clock=lambda: self.now)
        self.access.put("file", Stored([self.kept]).known())

    def ask(self, *, is_read: bool = False, **headers: str) -> str:
        """Return the tenant, or the reason of the refusal."""
        named = {name.replace("_", "-").encode(): value.encode() for name, value in headers.items()}
        try:
            return self.access.caller_of(named, is_read=is_read).tenant
        except NotAuthenticated as error:
            told, because = f"{error.message} {error.hint}", error.because
        assert self.key not in told
        return because


@pytest.mark.parametrize(
    ("headers", "told"),
    [
        # OpenAI's clients use one header, Anthropic's the other. The case of the scheme does not matter.
        ({"authorization": "Bearer {}"}, "acme"), ({"authorization": "bearer  {} "}, "acme"),
        ({"x_api_key": "{}"}, "acme"), ({"authorization": "Basic cDpw", "x_api_key": "{}"}, "acme"),
        ({}, "no_credentials"), ({"authorization": "Bearer "}, "no_credentials"),
        ({"authorization": "Bearer sk-1"}, "unknown_key"), ({"x_api_key": "{}a"}, "unknown_key"),
        ({"authorization": "Digest x"}, "unknown_key"),
    ],
)  # fmt: skip
def test_credentials_name_a_caller_or_are_refused_with_a_reason_that_is_counted(
    headers: dict[str, str], told: str
) -> None:
    """No message repeats a key."""
    known = Known()
    assert told == known.ask(**{name: value.format(known.key) for name, value in headers.items()})
    assert [told] * (told != "acme") == known.refused


def test_a_key_ends_at_its_expiry() -> None:
    """Also one that is remembered."""
    known = Known(expires="2001-09-09T03:46:40+02:00")
    known.now = seconds("2001-09-09T01:46:39Z")
    assert "acme" == known.ask(authorization=f"Bearer {known.key}")
    known.now += 1
    assert ["expired"] * 2 == [known.ask(x_api_key=known.key), known.ask(authorization=f"Bearer {known.key}")]


def test_a_source_replaces_only_its_own_keys() -> None:
    """A revoked key is reported as revoked, a removed one as unknown; remembered ones too. The memory is limited."""
    known, (other, kept) = Known(), made(tenant="other")

    def told() -> list[str]:
        return [known.ask(authorization=f"Bearer {key}") for key in (known.key, other)]

    for keys, answers in ([kept], ["acme", "other"]), ([], ["acme", "unknown_key"]):
        known.access.put("registry", Stored(keys).known())
        assert [answers] * 2 == [told(), told()]
    revoked = Key(known.kept.id, known.kept.hash, "acme", revoked="2001-01-01")
    for keys, answer in ([revoked], "revoked"), ([], "unknown_key"), ([known.kept], "acme"):
        known.access.put("file", Stored(keys).known())
        assert answer == known.ask(authorization=f"Bearer {known.key}")
    for spaces in range(3_000):
        assert "acme" == known.ask(authorization=f"Bearer {' ' * spaces}{known.key}")
    assert len(known.access._recent) <= 1024


def test_anonymous_callers_may_be_allowed_but_a_wrong_key_is_refused() -> None:
    """A wrong key is a mistake that its owner must learn of."""
    access = Access(allows_anonymous=True)
    assert ANONYMOUS is access.caller_of({})
    with pytest.raises(NotAuthenticated):
        access.caller_of({b"x-api-key": b"tgk_a_b"})


def test_a_key_as_a_browser_password_allows_only_reading() -> None:
    """A browser stores it and sends it with requests that other pages cause."""
    known = Known()
    basic = f"Basic {base64.b64encode(f'me:{known.key}'.encode()).decode()}"
    assert ["acme", "unknown_key"] == [known.ask(authorization=basic, is_read=is_read) for is_read in (True, False)]
    assert "unknown_key" == known.ask(authorization="Basic ?", is_read=True)

"""From credentials to a caller."""

from __future__ import annotations

import base64

import pytest

from gateway.callers.access import ANONYMOUS, Access
from gateway.callers.keys import Key, Keys, Stored, digest, new_key, seconds, usable
from gateway.errors import NotAuthenticated

PEPPER = b"p" * 32


class Known:
    """An access that knows one key."""

    def __init__(self, **fields: str) -> None:
        self.now = 1_000_000.0
        self.refused: list[str] = []
        self.key, name = new_key()
        self.kept = Key(name, digest(PEPPER, self.key.encode()).hex(), "acme", **fields)  # type: ignore[arg-type]
        self.access = Access(count=self.refused.append, clock=lambda: self.now)
        self.access.put("file", usable(Stored([self.kept]), PEPPER))

    def ask(self, **headers: str) -> str:
        """Return the tenant, or the reason of the refusal."""
        named = {name.replace("_", "-").encode(): value.encode() for name, value in headers.items()}
        try:
            return self.access.caller_of(named).tenant
        except NotAuthenticated as error:
            told, because = f"{error.message} {error.hint}", error.because
        assert self.key not in told
        return because


def test_a_key_is_accepted_in_either_header() -> None:
    """OpenAI's clients use one, Anthropic's the other. The case of the scheme does not matter."""
    known = Known()
    assert ["acme"] * 4 == [
        known.ask(authorization=f"Bearer {known.key}"), known.ask(authorization=f"bearer  {known.key} "),
        known.ask(x_api_key=known.key), known.ask(authorization="Basic cDpw", x_api_key=known.key),
    ]  # fmt: skip
    assert not known.refused


def test_every_refusal_says_why_and_is_counted() -> None:
    """For no key, a wrong key and a nearly right one."""
    known = Known()
    asked = [{}, {"authorization": "Bearer "}, {"authorization": "Bearer sk-1"}, {"x_api_key": known.key[:-1]},
             {"x_api_key": known.key + "a"}, {"authorization": "Digest x"}]  # fmt: skip
    found = [known.ask(**headers) for headers in asked]
    assert ["no_credentials"] * 2 + ["unknown_key"] * 4 == found == known.refused


def test_a_key_ends_at_its_expiry() -> None:
    """Also one that is remembered."""
    known = Known(expires="2001-09-09T01:46:40Z")
    known.now = seconds("2001-09-09T01:46:39Z")
    assert "acme" == known.ask(authorization=f"Bearer {known.key}")
    known.now += 1
    assert ["expired"] * 2 == [known.ask(x_api_key=known.key), known.ask(authorization=f"Bearer {known.key}")]


def test_a_source_replaces_only_its_own_keys() -> None:
    """A revoked key is reported as revoked, a removed one as unknown."""
    known = Known()
    other, name = new_key()
    kept = Key(name, digest(b"q" * 32, other.encode()).hex(), "other")
    known.access.put("registry", usable(Stored([kept]), b"q" * 32))
    assert ("acme", "other") == (known.ask(x_api_key=known.key), known.ask(x_api_key=other))
    known.access.put("registry", Keys())
    assert ("acme", "unknown_key") == (known.ask(x_api_key=known.key), known.ask(x_api_key=other))
    revoked = Key(known.kept.id, known.kept.hash, "acme", revoked="2001-01-01")
    known.access.put("file", usable(Stored([revoked]), PEPPER))
    assert "revoked" == known.ask(x_api_key=known.key)


def test_anonymous_callers_may_be_allowed_but_a_wrong_key_is_refused() -> None:
    """A wrong key is a mistake that its owner must learn of."""
    access = Access(allows_anonymous=True)
    assert ANONYMOUS is access.caller_of({})
    with pytest.raises(NotAuthenticated):
        access.caller_of({b"x-api-key": b"tgk_a_b"})


def test_a_key_as_a_browser_password_allows_only_reading() -> None:
    """A browser stores it and sends it with requests that other pages cause."""
    known = Known()
    basic = {b"authorization": b"Basic " + base64.b64encode(f"me:{known.key}".encode())}
    assert "acme" == known.access.caller_of(basic, is_read=True).tenant
    for headers, is_read in ((basic, False), ({b"authorization": b"Basic ?"}, True)):
        with pytest.raises(NotAuthenticated):
            known.access.caller_of(headers, is_read=is_read)


def test_remembered_callers_end_with_a_change_of_keys() -> None:
    """The same credentials need no second lookup. The memory is limited and is cleared by a change."""
    known = Known()
    assert ["acme", "acme"] == [known.ask(authorization=f"Bearer {known.key}") for _ in range(2)]
    known.access.put("file", Keys())
    assert "unknown_key" == known.ask(authorization=f"Bearer {known.key}")
    known.access.put("file", usable(Stored([known.kept]), PEPPER))
    for spaces in range(3_000):
        assert "acme" == known.ask(authorization=f"Bearer {' ' * spaces}{known.key}")
    assert len(known.access._recent) <= 1024

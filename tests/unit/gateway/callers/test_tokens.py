"""Tokens of an issuer: which are accepted, for which caller, and changes of the issuer's keys."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from jwt.algorithms import ECAlgorithm, RSAAlgorithm

from gateway.callers.access import Access
from gateway.callers.following import Following
from gateway.callers.keys import Keys
from gateway.callers.sources import sources_of
from gateway.callers.tokens import Issuer, IssuerKeys, caller_of
from gateway.errors import NotAuthenticated
from gateway.settings import Settings
from tests import sites

ISSUER = "https://issuer.example/"
NOW = 1_800_000_000


class Signer:
    """An issuer's private key."""

    def __init__(self, kid: str, *, curve: bool = False) -> None:
        self.kid = kid
        self.algorithm = "ES256" if curve else "RS256"
        self.private: Any = ec.generate_private_key(ec.SECP256R1()) if curve else rsa.generate_private_key(65537, 2048)
        kind = ECAlgorithm if curve else RSAAlgorithm
        public = json.loads(kind.to_jwk(self.private.public_key()))  # type: ignore[attr-defined]
        self.public = {**public, "kid": kid, "use": "sig"}

    def sign(self, **claims: Any) -> bytes:
        every = {"iss": ISSUER, "aud": "gateway", "sub": "me", "exp": NOW + 600, **claims}
        wanted = {name: value for name, value in every.items() if value is not None}
        return jwt.encode(wanted, self.private, self.algorithm, headers={"kid": self.kid}).encode()


Signers = dict[str, Signer]


@pytest.fixture(scope="module")
def signers() -> Signers:
    """Keys, shared by the tests because they take a moment to create."""
    return {"a": Signer("a"), "b": Signer("b", curve=True), "stranger": Signer("a")}


def jwks(*signers: Signer) -> bytes:
    """Return an issuer's published keys."""
    return json.dumps({"keys": [signer.public for signer in signers]}).encode()


class Site:
    """An issuer's site: documents by address, with a count of requests."""

    def __init__(self) -> None:
        self.documents: dict[str, bytes] = {}
        self.asked: list[str] = []

    def answer(self, asked: sites.Asked) -> tuple[int, bytes]:
        self.asked.append(asked.path)
        return (200, self.documents[asked.path]) if asked.path in self.documents else (404, b"")


class Believer:
    """An access that trusts an issuer."""

    def __init__(self, keys: str) -> None:
        self.now = float(NOW)
        self.source = IssuerKeys(Issuer(ISSUER, ("gateway", "other"), keys))
        self.access = Access(clock=lambda: self.now)
        self.following = Following(self.access, {"jwt": self.source})

    def ask(self, token: bytes) -> str:
        try:
            return self.access.caller_of({b"authorization": b"Bearer " + token}).tenant
        except NotAuthenticated as error:
            return error.because

    def problem(self) -> str:
        return str(self.following.status()["jwt"]["problem"] or "")


@pytest.fixture
def site(signers: Signers) -> Site:
    """A site with the keys `a` and `b`."""
    site = Site()
    site.documents["/jwks"] = jwks(signers["a"], signers["b"])
    return site


@pytest.fixture
def address(site: Site) -> Iterator[str]:
    """Where the site is."""
    with sites.site(site.answer) as address:
        yield address


@pytest.fixture
def keys(address: str) -> str:
    """The address of its keys."""
    return f"{address}/jwks"


@pytest.fixture
async def believer(keys: str) -> Believer:
    """One that has read those keys."""
    believer = Believer(keys)
    await believer.following.look()
    return believer


async def test_a_valid_token_identifies_its_subject(believer: Believer, signers: Signers) -> None:
    """RSA and elliptic curves, one of several audiences. It is verified only once."""
    tokens = signers["a"].sign(), signers["b"].sign(), signers["a"].sign(aud=["somebody", "other"])
    assert ["me"] * 3 == [believer.ask(token) for token in tokens]
    token = signers["a"].sign(sub="you")
    first, second = (believer.access.caller_of({b"authorization": b"Bearer " + token}) for _ in range(2))
    assert first is second


@pytest.mark.parametrize(
    ("claims", "because"),
    [
        ({"exp": NOW - 31}, "expired"), ({"exp": None}, "bad_token"), ({"exp": "soon"}, "bad_token"),
        ({"nbf": NOW + 60}, "bad_token"), ({"iss": "https://issuer.example"}, "bad_token"),
        ({"iss": None}, "bad_token"), ({"exp": "Infinity"}, "bad_token"),
        ({"aud": "somebody"}, "bad_token"), ({"aud": None}, "bad_token"), ({"sub": None}, "bad_token"),
        ({"sub": "x" * 101}, "bad_token"), ({"sub": "a\nb"}, "bad_token"),
    ],
)  # fmt: skip
async def test_a_token_with_wrong_claims_is_refused(
    believer: Believer, signers: Signers, claims: dict[str, Any], because: str
) -> None:
    """Expired, from another issuer, for another audience, or without a subject."""
    assert because == believer.ask(signers["a"].sign(**claims))


async def test_a_token_that_the_issuer_has_not_signed_is_refused(believer: Believer, signers: Signers) -> None:
    """Wrong signature, no signature, a public key as shared secret, other algorithms, garbage."""
    good = signers["a"].sign()
    claims = jwt.decode(good, options={"verify_signature": False})
    head, body, signature = good.split(b".")
    tokens = [
        signers["stranger"].sign(),
        jwt.encode(claims, None, "none", headers={"kid": "a"}).encode(),
        jwt.encode(claims, "k" * 64, "HS256", headers={"kid": "a"}).encode(),
        jwt.encode(claims, signers["a"].private, "RS512", headers={"kid": "a"}).encode(),
        b".".join((head, body, b"")),
        b".".join((head, jwt.utils.base64url_encode(json.dumps({**claims, "sub": "you"}).encode()), signature)),
    ]
    assert {"bad_token"} == {believer.ask(token) for token in tokens}
    for token in (b"..", b"a.b.c", b"." * 40_000, head + b"." + b"x" * 40_000 + b"."):
        assert "unknown_key" == believer.ask(token)


async def test_a_token_is_revoked_by_its_id_or_its_subject(believer: Believer, signers: Signers) -> None:
    """The file of keys lists revoked ids and subjects, whatever the issuer says. A remembered one ends by itself."""
    tokens = signers["a"].sign(jti="t1"), signers["a"].sign(sub="you")
    for ended, told in ((set(), ["me", "you"]), ({"t1"}, ["revoked", "you"]), ({"you"}, ["me", "revoked"])):
        believer.access.put("keys_file", Keys(ended=frozenset(ended)))
        assert told == [believer.ask(token) for token in tokens]
    believer.now += 631
    assert "expired" == believer.ask(tokens[0])


async def test_a_new_signing_key_counts_from_the_next_look(site: Site, believer: Believer, signers: Signers) -> None:
    """A key that is no longer published ends then. Unknown keys, which anybody can invent, ask the issuer nothing."""
    tokens = signers["a"].sign(), signers["b"].sign()
    for published, told in (("a", ["me", "unknown_signing_key"]), ("b", ["unknown_signing_key", "me"])):
        site.documents["/jwks"] = jwks(signers[published])
        await believer.following.look()
        asked = len(site.asked)
        assert told == [believer.ask(token) for token in tokens]
        assert asked == len(site.asked)


async def test_keys_survive_an_outage_of_their_issuer(site: Site, believer: Believer, signers: Signers) -> None:
    """Whatever it answers instead."""
    document = site.documents.pop("/jwks")
    await believer.following.look()
    assert "404" in believer.problem()
    assert "me" == believer.ask(signers["a"].sign())
    for broken in (b"", b"<html>", b'{"keys": {}}', b'{"keys": []}', b'{"keys": ["text"]}', b"[]", b"[" * 9000):
        site.documents["/jwks"] = broken
        await believer.following.look()
        assert believer.problem()
        assert "me" == believer.ask(signers["a"].sign())
    site.documents["/jwks"] = document
    await believer.following.look()
    assert not believer.problem()


def test_claims_grant_only_known_operations() -> None:
    """A claim may be nested, a list or a text. Unknown operations are other services' scopes."""
    names = {"tenant": "org", "endpoints": "gateway.endpoints", "operations": "scope", "class": "priority"}
    claims = {
        "sub": "me", "org": "acme", "gateway": {"endpoints": ["a", "b/*"]}, "scope": "openid infer metrics",
        "priority": "batch",
    }  # fmt: skip
    caller = caller_of(claims, names, 5.0)
    assert ("me", "acme", ("a", "b/*"), {"infer", "metrics"}, "batch", 5.0) == (
        caller.name, caller.tenant, caller.endpoints, caller.operations, caller.priority, caller.expires,
    )  # fmt: skip
    bare = caller_of({"sub": "me", "org": "acme"}, names, 5.0)
    assert ((), frozenset(), "default") == (bare.endpoints, bare.operations, bare.priority)
    assert (
        "x" == caller_of({"sub": "me", "https://a.example/org": "x"}, {"tenant": "https://a.example/org"}, 1.0).tenant
    )
    with pytest.raises(NotAuthenticated):
        caller_of({"sub": "me"}, names, 5.0)


async def test_unsuitable_keys_are_ignored(signers: Signers, tmp_path: Path) -> None:
    """Shared secrets, encryption keys, other algorithms, unknown types. A file, for example of a mounted ConfigMap, is
    read again when it changes.
    """
    file = tmp_path / "jwks.json"
    others = [{"kty": "oct", "k": "a" * 43, "kid": "s"}, {**signers["a"].public, "use": "enc", "kid": "e"},
              {**signers["a"].public, "alg": "HS256", "kid": "x"}, {"kty": "new", "kid": "n"}, "text"]  # fmt: skip
    believer = Believer(str(file))
    file.write_text(json.dumps({"keys": others}))
    await believer.following.look()
    assert "has no key for" in believer.problem()
    file.write_text(json.dumps({"keys": [*others, signers["a"].public]}))
    await believer.following.look()
    assert "1 keys" in believer.following.status()["jwt"]["known"]
    assert "me" == believer.ask(signers["a"].sign())
    shared = jwt.encode({"sub": "me"}, "s" * 32, "HS256", headers={"kid": "s"}).encode()
    assert "unknown_signing_key" == believer.ask(shared)


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"jwt_audience": ""}, "JWT_AUDIENCE and"), ({"jwt_claims": "tenat=org"}, "JWT_CLAIMS must be"),
        ({"jwt_claims": "tenant"}, "JWT_CLAIMS must be"), ({"jwt_keys": ""}, "JWT_KEYS are needed"),
        ({"jwt_keys": "ftp://h/jwks"}, "not an https address"),
    ],
)  # fmt: skip
def test_contradictory_settings_are_refused(fields: dict[str, str], why: str) -> None:
    """Before the gateway listens."""
    with pytest.raises(ValueError, match=why):
        sources_of(Settings(**{"jwt_issuer": ISSUER, "jwt_audience": "gateway", "jwt_keys": "https://h/k", **fields}))


def _header(text: str) -> bytes:
    return base64.urlsafe_b64encode(text.encode()).rstrip(b"=")


async def test_hostile_headers_are_refused(believer: Believer, signers: Signers) -> None:
    """Deep nesting, huge numbers, no object: any caller can send them."""
    for text in ('{"a":' + "[" * 9000, "[" * 9000, '{"a":' + "9" * 9000 + "}", "[]", '{"alg": "RS256", "kid": ["a"]}'):
        assert believer.ask(_header(text) + b".e30.") in ("unknown_key", "bad_token", "unknown_signing_key")
    head = _header('{"alg": "RS256", "kid": "a"}')
    assert "bad_token" == believer.ask(head + b"." + _header("[" * 9000) + b".")


async def test_no_redirect_is_followed(site: Site, address: str) -> None:
    """To where an attacker could provide keys."""
    with sites.site(lambda _: (302, b""), headers={"location": f"{address}/jwks"}) as elsewhere:
        believer = Believer(f"{elsewhere}/jwks")
        await believer.following.look()
    assert believer.problem()
    assert [] == site.asked

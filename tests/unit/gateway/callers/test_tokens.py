"""Tokens of an issuer: which are accepted, for which caller, and changes of the issuer's keys."""

from __future__ import annotations

import asyncio
import base64
import json
import threading
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from jwt.algorithms import ECAlgorithm, RSAAlgorithm

from gateway.callers.access import Access
from gateway.callers.following import Following
from gateway.callers.keys import BadKeys, Keys
from gateway.callers.sources import sources_of
from gateway.callers.tokens import Issuer, JwksSource, Redirects, caller_of, read_keys
from gateway.errors import NotAuthenticated
from gateway.settings import Settings
from tests import sites
from tests.waiting import LIMIT_S

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


@pytest.fixture(scope="module")
def signers() -> dict[str, Signer]:
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

    def __call__(self, url: str) -> bytes:
        self.asked.append(url)
        if url not in self.documents:
            raise OSError("nothing answers")
        return self.documents[url]


class Believer:
    """An access that trusts an issuer."""

    def __init__(self, site: Site, **fields: Any) -> None:
        self.now = float(NOW)
        self.ticks = 0.0
        issuer = Issuer(ISSUER, ("gateway", "other"), fields.pop("keys", "https://keys.example/jwks"), **fields)
        self.source = JwksSource(issuer, fetch=site, clock=lambda: self.ticks)
        self.access = Access(clock=lambda: self.now)
        self.following = Following(self.access, {"jwt": self.source})

    def ask(self, token: bytes) -> str:
        try:
            return self.access.caller_of({b"authorization": b"Bearer " + token}).tenant
        except NotAuthenticated as error:
            return error.because


@pytest.fixture
def site(signers: dict[str, Signer]) -> Site:
    """A site with the keys `a` and `b`."""
    site = Site()
    site.documents["https://keys.example/jwks"] = jwks(signers["a"], signers["b"])
    return site


async def test_a_valid_token_identifies_its_subject(site: Site, signers: dict[str, Signer]) -> None:
    """RSA and elliptic curves, one of several audiences. It is verified only once."""
    believer = Believer(site)
    await believer.following.look()
    assert ["me", "me", "me"] == [
        believer.ask(token) for token in (
            signers["a"].sign(), signers["b"].sign(), signers["a"].sign(aud=["somebody", "other"]),
        )
    ]  # fmt: skip
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
    site: Site, signers: dict[str, Signer], claims: dict[str, Any], because: str
) -> None:
    """Expired, from another issuer, for another audience, or without a subject."""
    believer = Believer(site)
    await believer.following.look()
    assert because == believer.ask(signers["a"].sign(**claims))


async def test_a_token_that_the_issuer_has_not_signed_is_refused(site: Site, signers: dict[str, Signer]) -> None:
    """Wrong signature, no signature, a public key as shared secret, other algorithms, garbage."""
    believer = Believer(site, algorithms=("RS256",))
    await believer.following.look()
    good = signers["a"].sign()
    claims = jwt.decode(good, options={"verify_signature": False})
    head, body, signature = good.split(b".")
    tokens = [
        signers["stranger"].sign(),
        jwt.encode(claims, None, "none", headers={"kid": "a"}).encode(),
        jwt.encode(claims, "k" * 64, "HS256", headers={"kid": "a"}).encode(),
        jwt.encode(claims, signers["a"].private, "RS512", headers={"kid": "a"}).encode(),
        signers["b"].sign(),
        b".".join((head, body, b"")),
        b".".join((head, jwt.utils.base64url_encode(json.dumps({**claims, "sub": "you"}).encode()), signature)),
    ]
    assert ["bad_token"] * len(tokens) == [believer.ask(token) for token in tokens]
    for token in (b"..", b"a.b.c", b"." * 40_000, head + b"." + b"x" * 40_000 + b"."):
        assert "unknown_key" == believer.ask(token)


async def test_a_token_expires_while_it_is_in_use(site: Site, signers: dict[str, Signer]) -> None:
    """Also a cached one: caches are notified within a second."""
    believer = Believer(site)
    forgot: list[int] = []
    await believer.following.look()
    believer.access.on_change(lambda: forgot.append(1))
    token = signers["a"].sign()
    assert "me" == believer.ask(token)
    believer.now += 631
    believer.access.tick()
    assert ([1], "expired") == (forgot, believer.ask(token))
    other = signers["a"].sign(exp=NOW + 1200)
    believer.access.caller_of({b"x-api-key": other})
    believer.now += 600
    believer.access.tick()
    assert [1, 1] == forgot


async def test_a_token_is_revoked_by_its_id_or_its_subject(site: Site, signers: dict[str, Signer]) -> None:
    """The file of keys lists revoked ids and subjects, whatever the issuer says."""
    believer = Believer(site)
    await believer.following.look()
    one, other = signers["a"].sign(jti="t1"), signers["a"].sign(sub="you")
    assert ["me", "you"] == [believer.ask(one), believer.ask(other)]
    believer.access.put("keys_file", Keys(ended=frozenset({"t1"})))
    assert ["revoked", "you"] == [believer.ask(one), believer.ask(other)]
    believer.access.put("keys_file", Keys(ended=frozenset({"you"})))
    assert ["me", "revoked"] == [believer.ask(one), believer.ask(other)]


async def test_a_new_signing_key_is_fetched_on_demand_at_a_limited_rate(site: Site, signers: dict[str, Signer]) -> None:
    """The request waits for it. Invented key ids cause no further fetches. A key that is no longer published ends."""
    site.documents["https://keys.example/jwks"] = jwks(signers["a"])
    believer = Believer(site)
    await believer.following.look()
    old, new = signers["a"].sign(), signers["b"].sign()
    assert "me" == believer.ask(old)
    site.documents["https://keys.example/jwks"] = jwks(signers["b"])

    async def shown(token: bytes) -> str:
        try:
            return (await believer.access.caller({b"authorization": b"Bearer " + token})).tenant
        except NotAuthenticated as error:
            return error.because

    assert ["me"] * 5 == await asyncio.gather(*(shown(new) for _ in range(5)))
    assert 2 == len(site.asked)
    assert "unknown_signing_key" == believer.ask(old)
    for kid in range(20):
        signers["stranger"].kid = f"made-up-{kid}"
        assert "unknown_signing_key" == await shown(signers["stranger"].sign())
    assert 2 == len(site.asked)


async def test_an_issuer_missing_at_start_is_asked_with_its_first_token(site: Site, signers: dict[str, Signer]) -> None:
    """Until then the refusal says that its keys are missing, not that the token is unknown."""
    documents = dict(site.documents)
    site.documents.clear()
    believer = Believer(site)
    await believer.following.look()
    token = signers["a"].sign()
    with pytest.raises(NotAuthenticated, match="could not be read yet") as refused:
        await believer.access.caller({b"authorization": b"Bearer " + token})
    assert "unknown_signing_key" == refused.value.because
    site.documents.update(documents)
    await believer.following.renewed("jwt")
    believer.following._retry_at.clear()
    assert "me" == (await believer.access.caller({b"authorization": b"Bearer " + token})).tenant


async def test_keys_survive_an_outage_of_their_issuer(site: Site, signers: dict[str, Signer]) -> None:
    """They are fetched every five minutes, after a failure every ten seconds."""
    believer = Believer(site)
    for ticks, asked in ((0, 1), (1, 1), (299, 1), (300, 2), (301, 2)):
        believer.ticks = ticks
        await believer.following.look()
        assert asked == len(site.asked)
    document = site.documents.pop("https://keys.example/jwks")
    for ticks, asked in ((601, 3), (605, 3), (611, 4)):
        believer.ticks = ticks
        await believer.following.look()
        assert asked == len(site.asked)
    assert "me" == believer.ask(signers["a"].sign())
    assert "nothing answers" in believer.following.status()["jwt"]["problem"]
    for broken in (b"", b"<html>", b'{"keys": {}}', b'{"keys": []}', b"[]"):
        site.documents["https://keys.example/jwks"] = broken
        believer.ticks += 10
        await believer.following.look()
        assert believer.following.status()["jwt"]["problem"]
        assert "me" == believer.ask(signers["a"].sign())
    site.documents["https://keys.example/jwks"] = document
    believer.ticks += 300
    await believer.following.look()
    assert None is believer.following.status()["jwt"]["problem"]


async def test_keys_are_found_through_the_issuer_or_in_a_file(
    site: Site, signers: dict[str, Signer], tmp_path: Path
) -> None:
    """By OpenID Connect discovery. A file is read again when it changes."""
    site.documents["https://issuer.example/.well-known/openid-configuration"] = json.dumps(
        {"jwks_uri": "https://keys.example/jwks"}
    ).encode()
    found = Believer(site, keys="")
    file = tmp_path / "jwks.json"
    file.write_bytes(jwks(signers["a"]))
    read = Believer(site, keys=str(file))
    for believer in (found, read):
        await believer.following.look()
        assert "me" == believer.ask(signers["a"].sign())
    assert "unknown_signing_key" == read.ask(signers["b"].sign())
    file.write_bytes(jwks(signers["b"]))
    await read.following.look()
    assert "me" == read.ask(signers["b"].sign())


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


def test_unsuitable_keys_are_ignored(signers: dict[str, Signer]) -> None:
    """Shared secrets, encryption keys, other algorithms, unknown types."""
    others = [{"kty": "oct", "k": "aaaa", "kid": "s"}, {**signers["a"].public, "use": "enc", "kid": "e"},
              {**signers["a"].public, "alg": "RS512", "kid": "x"}, {"kty": "new", "kid": "n"}, "text"]  # fmt: skip
    raw = json.dumps({"keys": [*others, signers["a"].public]}).encode()
    assert {"a"} == set(read_keys(raw, ("RS256",)))
    with pytest.raises(BadKeys, match="no key for RS256"):
        read_keys(json.dumps({"keys": others}).encode(), ("RS256",))


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"jwt_audience": ""}, "JWT_AUDIENCE is needed"), ({"jwt_algorithms": "HS256"}, "JWT_ALGORITHMS must be of"),
        ({"jwt_algorithms": "none"}, "JWT_ALGORITHMS"), ({"jwt_claims": "tenat=org"}, "JWT_CLAIMS must be"),
        ({"jwt_claims": "tenant"}, "JWT_CLAIMS must be"),
    ],
)  # fmt: skip
def test_contradictory_settings_are_refused(fields: dict[str, str], why: str) -> None:
    """Before the gateway listens."""
    with pytest.raises(ValueError, match=why):
        sources_of(Settings(**{"jwt_issuer": ISSUER, "jwt_audience": "gateway", **fields}))


@pytest.fixture
def slow() -> Iterator[str]:
    """A site that accepts connections and never answers."""
    release = threading.Event()

    def wait(_: sites.Asked) -> tuple[int, bytes]:
        release.wait(20)
        return 200, b""

    with sites.site(wait) as address:
        yield f"{address}/jwks"
        release.set()


async def test_an_issuer_that_does_not_answer_does_not_block_the_event_loop(
    slow: str, signers: dict[str, Signer], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A thread asks it, with a time-out."""
    monkeypatch.setattr("gateway.callers.tokens._TIMEOUT_S", 2.0)
    source = JwksSource(Issuer(ISSUER, ("gateway",), slow))
    following = Following(Access(), {"jwt": source})
    look = asyncio.create_task(following.look())
    for _ in range(3):
        await asyncio.sleep(0)
    assert not look.done()
    async with asyncio.timeout(LIMIT_S):
        await look
    assert "timed out" in following.status()["jwt"]["problem"]


def _header(text: str) -> bytes:
    return base64.urlsafe_b64encode(text.encode()).rstrip(b"=")


async def test_hostile_headers_are_refused(site: Site, signers: dict[str, Signer]) -> None:
    """Deep nesting, huge numbers, no object: any caller can send them."""
    believer = Believer(site)
    await believer.following.look()
    for text in ('{"a":' + "[" * 9000, "[" * 9000, '{"a":' + "9" * 9000 + "}", "[]", '{"alg": "RS256", "kid": ["a"]}'):
        assert believer.ask(_header(text) + b".e30.") in ("unknown_key", "bad_token", "unknown_signing_key")
    head = _header('{"alg": "RS256", "kid": "a"}')
    assert "bad_token" == believer.ask(head + b"." + _header("[" * 9000) + b".")


async def test_a_token_with_an_unknown_critical_header_is_refused(site: Site, signers: dict[str, Signer]) -> None:
    """As RFC 7515 requires for `crit`."""
    believer = Believer(site)
    await believer.following.look()
    _, body, _ = signers["a"].sign().split(b".")
    named = {"alg": "RS256", "kid": "a", "crit": ["x-bound-to"], "x-bound-to": "somebody"}
    head = _header(json.dumps(named))
    signed = RSAAlgorithm(RSAAlgorithm.SHA256).sign(head + b"." + body, signers["a"].private)
    token = head + b"." + body + b"." + base64.urlsafe_b64encode(signed).rstrip(b"=")
    assert believer.ask(token) in ("bad_token", "unknown_key")  # PyJWT's newer releases do not even read it


async def test_an_https_issuer_must_not_lead_to_http(site: Site, signers: dict[str, Signer]) -> None:
    """Neither by its description nor by a redirect, where an attacker could provide keys. Nor to another issuer."""
    found = "https://issuer.example/.well-known/openid-configuration"
    for document, why in (
        ({"jwks_uri": "http://keys.example/jwks"}, "without TLS"),
        ({"jwks_uri": "https://keys.example/jwks", "issuer": "https://other.example/"}, "names another issuer"),
    ):
        site.documents[found] = json.dumps(document).encode()
        site.documents["http://keys.example/jwks"] = jwks(signers["a"])
        believer = Believer(site, keys="")
        await believer.following.look()
        assert why in believer.following.status()["jwt"]["problem"]
        assert "unknown_signing_key" == believer.ask(signers["a"].sign())
    asked = urllib.request.Request("https://issuer.example/jwks")
    for address in ("http://issuer.example/jwks", "ftp://issuer.example/jwks"):
        with pytest.raises(ValueError, match="without TLS"):
            Redirects().redirect_request(asked, None, 302, "", {}, address)  # type: ignore[arg-type]
    assert Redirects().redirect_request(asked, None, 302, "", {}, "https://b.example/")  # type: ignore[arg-type]

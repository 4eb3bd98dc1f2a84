"""Tokens of an issuer: which are accepted, for which caller, and changes of the issuer's keys."""

from __future__ import annotations

import base64
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from jwt.algorithms import ECAlgorithm, RSAAlgorithm

from gateway.callers.access import Access
from gateway.callers.following import Following
from gateway.callers.keys import Keys
from gateway.callers.tokens import Issuer, IssuerKeys, caller_of
from gateway.errors import NotAuthenticated
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


class Believer:
    """An access that trusts an issuer, whose keys lie at ``keys``."""

    def __init__(self, keys: str) -> None:
        self.keys = keys
        self.now = float(NOW)
        self.published: bytes | None = None
        """What the issuer's site answers; None for 404."""
        self.asked = 0
        self.access = Access(clock=lambda: self.now)
        source = IssuerKeys(Issuer(ISSUER, ("gateway", "other"), keys))
        self.following = Following(self.access, {"jwt": source})

    def answer(self, _asked: object) -> tuple[int, bytes]:
        """Answer for the issuer's site."""
        self.asked += 1
        return (404, b"") if self.published is None else (200, self.published)

    def ask(self, token: bytes) -> str:
        try:
            return self.access.caller_of({b"authorization": b"Bearer " + token}).tenant
        except NotAuthenticated as error:
            return error.because

    async def problem(self) -> str:
        """Look once more; return what is wrong with the keys."""
        await self.following.look()
        return str(self.following.status()["jwt"]["problem"] or "")


@pytest.fixture
async def believer(signers: Signers) -> AsyncIterator[Believer]:
    """One that has read the keys `a` and `b` from a site."""
    with sites.site(lambda asked: believer.answer(asked)) as address:
        believer = Believer(f"{address}/jwks")
        believer.published = jwks(signers["a"], signers["b"])
        assert not await believer.problem()
        yield believer


@pytest.mark.parametrize(
    ("signer", "claims", "told"),
    [
        ("a", {}, "me"), ("b", {}, "me"), ("a", {"aud": ["somebody", "other"]}, "me"), ("a", {"exp": NOW - 29}, "me"),
        ("a", {"exp": NOW - 31}, "expired"), ("a", {"exp": None}, "bad_token"), ("a", {"exp": "soon"}, "bad_token"),
        ("a", {"nbf": NOW + 60}, "bad_token"), ("a", {"iss": "https://issuer.example"}, "bad_token"),
        ("a", {"iss": None}, "bad_token"), ("a", {"exp": "Infinity"}, "bad_token"),
        ("a", {"aud": "somebody"}, "bad_token"), ("a", {"aud": None}, "bad_token"), ("a", {"sub": None}, "bad_token"),
        ("a", {"sub": "x" * 101}, "bad_token"), ("a", {"sub": "a\nb"}, "bad_token"), ("stranger", {}, "bad_token"),
    ],
)  # fmt: skip
async def test_a_token_identifies_its_subject_or_is_refused(
    believer: Believer, signers: Signers, signer: str, claims: dict[str, Any], told: str
) -> None:
    """RSA and elliptic curves, one of several audiences; its end with half a minute's leeway."""
    assert told == believer.ask(signers[signer].sign(**claims))


def _header(text: str) -> bytes:
    return base64.urlsafe_b64encode(text.encode()).rstrip(b"=")


async def test_a_token_that_the_issuer_has_not_signed_is_refused(believer: Believer, signers: Signers) -> None:
    """No signature, a public key as shared secret, other algorithms, garbage; and what any caller can send: deep
    nesting, huge numbers, no object. A good one is verified only once.
    """
    good = signers["a"].sign()
    first, second = (believer.access.caller_of({b"authorization": b"Bearer " + good}) for _ in range(2))
    assert first is second
    claims = jwt.decode(good, options={"verify_signature": False})
    head, body, signature = good.split(b".")
    tokens = [
        jwt.encode(claims, None, "none", headers={"kid": "a"}).encode(),
        jwt.encode(claims, "k" * 64, "HS256", headers={"kid": "a"}).encode(),
        jwt.encode(claims, signers["a"].private, "RS512", headers={"kid": "a"}).encode(),
        b".".join((head, body, b"")),
        b".".join((head, jwt.utils.base64url_encode(json.dumps({**claims, "sub": "you"}).encode()), signature)),
        _header('{"alg": "RS256", "kid": "a"}') + b"." + _header("[" * 9000) + b".",
    ]
    assert {"bad_token"} == {believer.ask(token) for token in tokens}
    for token in (b"..", b"a.b.c", b"." * 40_000, head + b"." + b"x" * 40_000 + b"."):
        assert "unknown_key" == believer.ask(token)
    for text in ('{"a":' + "[" * 9000, "[" * 9000, '{"a":' + "9" * 9000 + "}", "[]", '{"alg": "RS256", "kid": ["a"]}'):
        assert believer.ask(_header(text) + b".e30.") in ("unknown_key", "bad_token", "unknown_signing_key")


async def test_a_token_is_revoked_by_its_id_or_its_subject(believer: Believer, signers: Signers) -> None:
    """The file of keys lists revoked ids and subjects, whatever the issuer says. A remembered one ends by itself."""
    tokens = signers["a"].sign(jti="t1"), signers["a"].sign(sub="you")
    for ended, told in ((set(), ["me", "you"]), ({"t1"}, ["revoked", "you"]), ({"you"}, ["me", "revoked"])):
        believer.access.put("keys_file", Keys(ended=frozenset(ended)))
        assert told == [believer.ask(token) for token in tokens]
    believer.now += 631
    assert "expired" == believer.ask(tokens[0])


async def test_a_new_signing_key_counts_from_the_next_look(believer: Believer, signers: Signers) -> None:
    """A key that is no longer published ends then. Unknown keys, which anybody can invent, ask the issuer nothing. Keys
    survive an outage of their issuer, whatever it answers instead.
    """
    tokens = signers["a"].sign(), signers["b"].sign()
    for published, told in (("b", ["unknown_signing_key", "me"]), ("a", ["me", "unknown_signing_key"])):
        believer.published = jwks(signers[published])
        assert not await believer.problem()
        asked = believer.asked
        assert told == [believer.ask(token) for token in tokens]
        assert asked == believer.asked
    for broken in (None, b"", b"<html>", b'{"keys": {}}', b'{"keys": []}', b'{"keys": ["text"]}', b"[]", b"[" * 9000):
        believer.published = broken
        assert await believer.problem()
        assert "me" == believer.ask(signers["a"].sign())
    believer.published = jwks(signers["a"])
    assert not await believer.problem()


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
    url = "https://a.example/org"
    assert "x" == caller_of({"sub": "me", url: "x"}, {"tenant": url}, 1.0).tenant
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
    assert "has no key for" in await believer.problem()
    file.write_text(json.dumps({"keys": [*others, signers["a"].public]}))
    assert not await believer.problem()
    assert "1 keys" in believer.following.status()["jwt"]["known"]
    assert "me" == believer.ask(signers["a"].sign())
    shared = jwt.encode({"sub": "me"}, "s" * 32, "HS256", headers={"kid": "s"}).encode()
    assert "unknown_signing_key" == believer.ask(shared)


async def test_no_redirect_is_followed(believer: Believer) -> None:
    """To where an attacker could provide keys."""
    asked = believer.asked
    with sites.site(lambda _: (302, b""), headers={"location": believer.keys}) as elsewhere:
        assert await Believer(f"{elsewhere}/jwks").problem()
    assert asked == believer.asked

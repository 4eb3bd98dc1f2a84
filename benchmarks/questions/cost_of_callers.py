"""What does authentication of callers cost the gateway per request: keys, quotas, tokens of an issuer?

Gateways in this process, equal except for how they identify callers, in front of a model that answers at once. Bytes go
through their HTTP protocol without a socket, many connections at a time. Rounds are interleaved: all gateways within
moments of each other, in changing order, with the same texts. It prints microseconds of CPU per request, and the
difference to the gateway without authentication: the median of the rounds' differences with its 95 % bootstrap
interval. One key of a thousand is used, and one token, like a service's client all day.
"""

from __future__ import annotations

import contextlib
import json
import random
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np

from benchmarks.shared import corpus
from benchmarks.shared.command import parser
from benchmarks.shared.results import DOCS, put, save, table
from benchmarks.shared.statistics import difference
from benchmarks.shared.wire import Load, gateway_in, request, until_served

TAKES = "half a minute"
SAVES = "results/callers.json, docs/access.md"
BASE: Final = "anybody"
FORMS: Final[Mapping[str, str]] = {
    BASE: "nothing: everybody is answered",
    "key": "a key, for one endpoint",
    "quota": "a key of a tenant with limits",
    "token": "a token of an issuer (JWT, RS256)",
}
_ENDPOINT: Final = "labels"
_KEYS: Final = 1000
_ISSUER: Final = "https://issuer.example/"


def keys_in(folder: Path, *, limits: Mapping[str, int]) -> tuple[dict[str, object], str]:
    """Write a file of keys; return the settings that name it, and one of the keys."""
    from gateway.callers.keys import Key, digest, name_of, new_key, new_pepper, read_pepper

    pepper = new_pepper()
    (folder / "keys.json.pepper").write_bytes(pepper)
    secret = read_pepper(pepper)
    found, shown = [], ""
    for number in range(_KEYS):
        shown, name = new_key()
        hashed = digest(secret, shown.encode()).hex()
        found.append(Key(name, hashed, f"tenant-{number}", endpoints=(_ENDPOINT,)).to_json())
    content: dict[str, object] = {"pepper": name_of(secret), "keys": found}
    if limits:
        content["quotas"] = {"*": limits}
    (folder / "keys.json").write_text(json.dumps(content))
    return {"keys_file": str(folder / "keys.json")}, shown


def issuer_in(folder: Path) -> tuple[dict[str, object], str]:
    """Write an issuer's public key; return the settings that name it, and a token."""
    import jwt
    from cryptography.hazmat.primitives.asymmetric import rsa
    from jwt.algorithms import RSAAlgorithm

    private = rsa.generate_private_key(65537, 2048)
    public: dict[str, Any] = json.loads(RSAAlgorithm.to_jwk(private.public_key()))
    (folder / "jwks.json").write_text(json.dumps({"keys": [{**public, "kid": "a", "use": "sig"}]}))
    claims = {"iss": _ISSUER, "aud": "gateway", "sub": "a-service", "exp": int(time.time()) + 86_400}
    token = jwt.encode(claims, private, "RS256", headers={"kid": "a"})
    keys = str(folder / "jwks.json")
    return {"jwt_issuer": _ISSUER, "jwt_audience": "gateway", "jwt_keys": keys}, token


def settings_in(folder: Path, form: str) -> tuple[dict[str, object], str]:
    """Return the settings of one gateway, and the header lines of its callers."""
    if form == BASE:
        return {"allow_anonymous": True}, ""
    if form == "token":
        settings, shown = issuer_in(folder)
    else:
        plenty = {"requests_per_minute": 10**9, "tokens_per_minute": 10**12}
        settings, shown = keys_in(folder, limits=plenty if form == "quota" else {})
    return settings, f"authorization: Bearer {shown}\r\n"


async def measure(rounds: int, each: int) -> dict[str, list[float]]:
    """Return kind of authentication → µs per request, one number per round."""
    texts = corpus.Corpus(seed=1).texts("short", 20_000)
    rng = random.Random(0)
    found: dict[str, list[float]] = {form: [] for form in FORMS}
    async with contextlib.AsyncExitStack() as open_:
        loads: dict[str, tuple[Load, str]] = {}
        for form in FORMS:
            folder = Path(open_.enter_context(tempfile.TemporaryDirectory()))
            settings, lines = settings_in(folder, form)
            gateway = gateway_in(folder, **settings)
            await open_.enter_async_context(gateway.running())
            await until_served(gateway)
            loads[form] = Load(gateway), lines
        order = list(FORMS)
        for round_ in range(-2, rounds):
            rng.shuffle(order)
            chosen = [texts[rng.randrange(len(texts))] for _ in range(each)]
            for form in order:
                load, lines = loads[form]
                cost = await load.cost([request(f"/serve/{_ENDPOINT}", {"text": text}, lines) for text in chosen])
                if round_ >= 0:  # the first rounds warm up
                    found[form].append(cost)
    return found


def shown(found: Mapping[str, Sequence[float]]) -> str:
    """Return the table of docs/access.md."""
    rows = [["callers are identified by", "µs of CPU per request", "µs more than the first row"]]
    for form, name in FORMS.items():
        more = "–"
        if form != BASE:
            one = difference(list(zip(found[form], found[BASE], strict=True)))
            more = f"{one.median:.1f} ({one.low:.1f} to {one.high:.1f})"
        rows.append([name, f"{np.median(found[form]):.1f}", more])
    return table(rows)


def main(argv: Sequence[str] | None = None) -> int:
    """Measure and print."""
    import uvloop

    arguments = parser(__name__, __doc__, saves=SAVES)
    arguments.add_argument("--rounds", type=int, default=25)
    arguments.add_argument("--requests", type=int, default=1280, help="requests per kind and round")
    options = arguments.parse_args(argv)
    found = uvloop.run(measure(options.rounds, options.requests))
    print(shown(found))
    if options.save:
        save("callers", found)
        put(DOCS / "access.md", "callers", shown(found))
    return 0

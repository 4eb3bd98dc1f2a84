"""Chooses a version by the weights of a canary. Pure: the random number or the routing key is an argument.

The semantics are clearml-serving's: fixed endpoints, or the newest under a prefix, with normalised weights. Two things
are added. Invalid weights are refused at once instead of failing later, and a routing key makes the choice sticky. A
key's position in [0, 1) does not depend on the weights, so a growing weight only moves keys to the growing side.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from operator import itemgetter

from gateway.errors import SpecFault
from gateway.spec import CanarySpec


@dataclass(frozen=True, slots=True)
class Weighted:
    """The share of each url, in a fixed order; together 1.

    ``stable`` is the version that answers if another one fails: the one that a rollout names, else the one with the
    largest share (among equals the last, because canaries are written first).
    """

    shares: Mapping[str, float]
    stable: str

    def pick(self, position: float) -> str:
        """Return the url whose share contains ``position`` (0 ≤ position < 1)."""
        picked = self.stable
        for url, share in self.shares.items():
            if share > 0:  # else rounding could send a request to a version of weight 0
                picked = url
                position -= share
                if position < 0:
                    break
        return picked


def position_of(key: str, salt: str) -> float:
    """Map a routing key to a fixed position in [0, 1); ``salt`` (the canary's name) decorrelates canaries."""
    digest = hashlib.blake2b(key.encode("utf-8", "surrogatepass"), digest_size=8, key=salt.encode()[:64]).digest()
    return (int.from_bytes(digest, "big") >> 11) * 2.0**-53


def resolve(canary: CanarySpec, known: Collection[str]) -> list[tuple[str, float]]:
    """Return ``(url, weight)`` of a canary over the ``known`` urls, as clearml-serving selects them.

    Raises ``SpecFault`` if the weights are missing, negative, not finite, all zero, or not one per endpoint; if the
    canary has both forms or none; or if it matches no known url.
    """
    weights = canary.weights
    if not weights or any(not math.isfinite(w) or w < 0 for w in weights):
        raise SpecFault(f"needs --weights of zero or more, one per endpoint, not {list(weights)}")
    if bool(canary.load_endpoints) == bool(canary.prefix):
        raise SpecFault("needs either --input-endpoints or --input-endpoint-prefix")
    if canary.load_endpoints:
        if len(canary.load_endpoints) != len(weights):
            raise SpecFault(f"has {len(weights)} weights for {len(canary.load_endpoints)} endpoints; give one each")
        chosen = [(u, w) for u, w in zip(canary.load_endpoints, weights, strict=True) if u in known]
    else:
        newest = sorted((u for u in known if u.startswith(canary.prefix)), key=_age_key, reverse=True)
        chosen = list(zip(newest, weights, strict=False))
    if not chosen:
        raise SpecFault("matches no endpoint that exists")
    if sum(w for _, w in chosen) <= 0:
        raise SpecFault("has only zero weights for the endpoints that exist")
    return chosen


def weighted(choices: Sequence[tuple[str, float]], stable: str = "") -> Weighted:
    """Normalise ``choices``, whose sum must be positive; ``stable`` is used if it is one of them."""
    total = sum(weight for _, weight in choices)
    shares: dict[str, float] = {}
    for url, weight in choices:
        shares[url] = shares.get(url, 0.0) + weight / total
    return Weighted(shares, stable if stable in shares else max(reversed(shares.items()), key=itemgetter(1))[0])


def _age_key(url: str) -> str:
    # clearml-serving sorts versions as numbers by padding the last path part, and newest first.
    base, slash, last = url.rpartition("/")
    return f"{base}/{last:0>9}" if slash else url

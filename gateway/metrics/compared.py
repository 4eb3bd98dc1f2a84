"""How a canary's requests and answers differ from stable's, as compared by the gateways, in sentences. Pure.

Reads ``compared`` of ``/v1/status`` (see ``versions``). It informs and decides nothing: a version may be meant to
answer differently, and callers may be meant to stay with one version. Readers of a verdict must know the difference.

Public: ``deploy`` may import it, for verdicts of rollouts and ``drift report --compare``.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from gateway.metrics.drift import Evidence, Verdict

_MEANINGS: Final = {
    "texts": "it gets other texts than stable ({}): the traffic is split unevenly, and errors, latency and labels "
    "cannot be compared fairly",
    "tokens": "its texts have other tokens than stable's ({}): it gets other texts, or its tokenizer differs",
    "answers": "it answers differently from stable ({})",
    "declared": "a declared variable differs from stable ({})",
}
_MAX_NAMED: Final = 3


@dataclass(frozen=True, slots=True)
class Compared:
    """One variable of a canary (``verdict``), with the stable version as its reference."""

    verdict: Verdict
    stable: str
    kind: str
    """``texts``, ``tokens``, ``answers`` or ``declared``."""

    def described(self) -> dict[str, Any]:
        """Return plain values for programs."""
        return {**self.verdict.described(), "beside": self.stable, "kind": self.kind}


def read(statuses: Iterable[Mapping[str, Any]]) -> list[Compared]:
    """Return the comparisons in these gateways' ``/v1/status``.

    The evidence of several gateways is averaged, as for drift; the counts are those of the gateway with the most.
    """
    of: dict[tuple[str, ...], list[Mapping[str, Any]]] = {}
    for status in statuses:
        for one in status.get("compared") or ():
            of.setdefault((one["endpoint"], one["version"], one["beside"], one["variable"]), []).append(one)
    return [_merged(several) for _, several in sorted(of.items())]


def _merged(several: Sequence[Mapping[str, Any]]) -> Compared:
    most = max(several, key=lambda one: float(one["n"]))
    since = [one["since"] for one in several if one["since"] is not None]
    evidence = Evidence(
        math.fsum(one["days"] for one in several) / len(several),
        math.fsum(one["endpoint_days"] for one in several) / len(several),
        most["visible"], min(since) if since else math.nan, most["alarm_days"],
    )  # fmt: skip
    verdict = Verdict(
        most["endpoint"], most["version"], most["variable"], (*most["bins"],), (*most["reference"],),
        (*most["counts"],), most["reference_size"], evidence,
    )  # fmt: skip
    return Compared(verdict, most["beside"], most["kind"])


def sentences(found: Iterable[Compared]) -> dict[str, str]:
    """Return a sentence for each kind of difference that is certain (state ``drift``)."""
    differs = [one for one in found if one.verdict.state == "drift"]
    found_by_kind = {
        kind: meaning.format("; ".join(map(_how, of[:_MAX_NAMED])))
        for kind, meaning in _MEANINGS.items() if (of := [one.verdict for one in differs if one.kind == kind])
    }  # fmt: skip
    if "texts" in found_by_kind and "answers" in found_by_kind:
        found_by_kind["answers"] += "; its texts may be the reason"
    return found_by_kind


def _how(verdict: Verdict) -> str:
    was = dict(zip(verdict.bins, verdict.reference, strict=True))
    clearest = sorted(verdict.moved, key=lambda one: one[1] < 0)[:1]  # a bin that became more frequent, if there is one
    bins = [f"{verdict.named(name)} {was[name] + by:.1%}, stable {was[name]:.1%}" for name, by in clearest]
    return ": ".join((verdict.variable, *bins))

"""The rollout that ``canary run`` asks the controller for: its versions, rules and gate.

Refuses what could not be compared, or would begin with the wrong version. Pure.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from typing import Any, Final

from deploy.controller.rollouts import record
from deploy.controller.rollouts.gate import Gate
from deploy.controller.rollouts.steps import Rollout, Rules
from deploy.tools.errors import DeployError
from gateway import preview, spec
from gateway.metrics.mirrored import renamed

_MIRRORED: Final = (
    "text-classification", "token-classification", "zero-shot-classification", "sentence-embeddings",
)  # fmt: skip
"""Tasks that give the same answer to the same text every time. Their answers are compared on mirrored requests by
default."""
_MIRRORED_PERCENT: Final = 10.0
"""A busy backend drops mirrored requests first, so this costs callers nothing."""


def planned(
    serving: spec.ServingSpec, endpoint: str, to: str, from_: str | None, served: Sequence[Mapping[str, Any]], *,
    steps: str, min_requests: int, step_time: float, slower: float, label_shift: float, mirror: float | None,
    other_answers: float, new_labels: bool,
) -> Rollout:  # fmt: skip
    """Return the rollout of version ``to``. ``served``: the versions of gateways' status, with their details.

    The options are those of ``canary run``: shares in percent, times in seconds. Raises ``DeployError`` and
    ``SpecFault``.
    """
    shares = percents(steps)
    canary = serving.url_of(endpoint, to)
    stable = serving.url_of(endpoint, from_) if from_ else stable_of(serving, endpoint, canary)
    preview.check_weights(serving, endpoint, [(canary, 0.0), (stable, 1.0)])
    one, other = _details(served, stable), _details(served, canary)
    if not new_labels:
        _check_labels(one, other, stable, canary)
    if mirror is None:
        is_ours = one.get("task") in _MIRRORED and "stages" not in one  # users' code may vary its answers
        mirror = _MIRRORED_PERCENT if is_ours else 0.0
    gate = Gate(1 + slower / 100, label_shift / 100, other_answers / 100 if mirror else 0.0)
    names = renamed(_labels(one), _labels(other))
    rules = Rules(min_requests, step_time, mirror, names)
    return Rollout(endpoint, canary, stable, steps=shares, rules=rules, gate=gate)


def _details(served: Sequence[Mapping[str, Any]], url: str) -> Mapping[str, Any]:
    """Return a gateway's details of the version at ``url``; empty if no gateway serves it."""
    return next((one["details"] for one in served if one.get("url") == url and one.get("details")), {})


def _labels(details: Mapping[str, Any]) -> list[str]:
    labels = details.get("labels")
    return [*map(str, labels)] if isinstance(labels, list) else []


def _check_labels(stable: Mapping[str, Any], canary: Mapping[str, Any], one: str, other: str) -> None:
    """Raise ``DeployError`` if both versions have labels and they are not the same, in the same order."""
    before, now = _labels(stable), _labels(canary)
    if before and now and before != now:
        same = sorted(before) == sorted(now)
        raise DeployError(
            f"the labels of {other} {'are in another order' if same else 'have other names'}: "
            f"{', '.join(now)}; {one} has {', '.join(before)}",
            hint="check `id2label` in the model's config.json. If the change is intended, give --new-labels",
        )


def stable_of(serving: spec.ServingSpec, endpoint: str, canary: str) -> str:
    """Return the version that answers most requests now. Raises ``DeployError`` if none does, or ``canary`` itself.

    A first step gives all but a few requests to the stable version: it must be the one that answers them already.
    """
    current = record.weights(serving, endpoint) or {}
    if not any(current.values()):
        default = endpoint if endpoint in serving.endpoints else serving.defaults.get(endpoint, "")
        current = {default: 1.0} if default in serving.endpoints else {}
    if current:
        most = max(current, key=lambda url: current[url])
        if most == canary:
            raise DeployError(
                f"{canary} already answers {'all' if len(current) == 1 else 'most'} requests for {endpoint} without a "
                "version: a rollout to it would first give them to another version",
                hint="name another version with --to; if you mean this one, name the stable version with --from",
            )
        return most
    others = [url for url in serving.endpoints if url != canary and (url == endpoint or url.startswith(f"{endpoint}/"))]
    if len(others) == 1:
        return others[0]
    raise DeployError(
        f"it is not clear which version is the stable one: {endpoint} has "
        f"{', '.join(sorted(others)) or 'no other version'}",
        hint="name the stable version with --from",
    )


def percents(text: str) -> tuple[float, ...]:
    """Return the shares of steps that were typed as `1,5,25,50,100`. Raises ``DeployError``."""
    with contextlib.suppress(ValueError):
        steps = tuple(float(part) for part in text.split(","))
        if list(steps) == sorted(set(steps)) and 0 < steps[0] < 100 >= steps[-1]:
            return steps if steps[-1] == 100 else (*steps, 100.0)
    raise DeployError(
        f"--steps {text!r}: each step must be a percentage larger than the one before, the first one between 0 and 100",
        hint="write for instance 1,5,25,50,100; `triton-gateway canary set` sends all requests to a version",
    )

"""A rollout as a value and the one function that moves it: what was seen goes in, the next rollout comes out. Pure.

Called by ``runner`` after every scrape and by the commands that act without a runner. Everything a runner has to know
after a restart, on whatever machine, is in the ``Rollout``; what it decided and why is in its ``history``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import astuple, dataclass, field, replace
from typing import Any, Final, Literal

from deploy.rollout import sight
from deploy.rollout.gate import DOUBT, THRESHOLD, Counts, Gate

Phase = Literal["running", "paused", "promoted", "rolled_back", "aborted"]
State = Literal["waiting", "inconclusive", "holding", "healthy", "over"]
Command = Literal["pause", "resume", "promote", "abort"]

STEPS: Final = (1.0, 5.0, 25.0, 50.0, 100.0)
_SILENT_STEPS: Final = 3
"""So many step times a canary may have no room for any request while stable answers; then it is rolled back."""
_MAX_HISTORY: Final = 60


@dataclass(frozen=True, slots=True)
class Rules:
    """When a step is over: so many requests of either side were compared and so much time has passed.

    ``variable``: the one whose values are compared; empty: what versions answer is not. ``mirror``: the percentage of
    stable's requests that the canary answers once more, unseen, while the rollout runs; 0: none. ``mirror_first``: the
    percentage until enough of them were compared; 0: the same. ``mirror_wait_s``: so long the first step takes at most
    for the sake of that many.
    """

    min_requests: int = 200
    step_s: float = 60.0
    variable: str = ""
    mirror: float = 0.0
    mirror_first: float = 0.0
    mirror_wait_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Seen:
    """What one look found.

    ``canary`` and ``stable`` count what was answered since the last look. ``missing`` names who could not be read;
    ``lagging`` who does not route by the current weights yet. ``foreign``: somebody else changed the weights.
    ``apart``: how what the canary is asked and answers differs from stable, a sentence by kind (``compared``).
    """

    canary: Counts = field(default_factory=Counts)
    stable: Counts = field(default_factory=Counts)
    missing: tuple[str, ...] = ()
    lagging: tuple[str, ...] = ()
    foreign: str = ""
    apart: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Decision:
    """One entry of the history: what was decided, at which weight (percent), why, on which evidence."""

    at: float
    what: str
    weight: float
    why: str
    evidence: Mapping[str, Any] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """Return the entry as it is stored and printed."""
        return {"at": round(self.at, 1), "what": self.what, "weight": self.weight, "why": self.why,
                "evidence": dict(self.evidence)}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Silence:
    """Looks in a row at which the canary answered nothing: since when, how many requests it had no room for, and how
    many stable answered meanwhile.
    """

    since: float
    refused: int = 0
    stable: int = 0

    def after(self, seen: Seen) -> Silence:
        """Return the silence after one more look."""
        return replace(self, refused=self.refused + seen.canary.refused, stable=self.stable + seen.stable.requests)


@dataclass(frozen=True, slots=True)
class Rollout:
    """A rollout of ``canary`` beside ``stable`` (urls) under the route ``endpoint``; times are Unix seconds."""

    endpoint: str
    canary: str
    stable: str
    steps: tuple[float, ...] = STEPS
    rules: Rules = field(default_factory=Rules)
    index: int = 0
    phase: Phase = "running"
    state: State = "waiting"
    why: str = ""
    since: float = 0.0
    compared: tuple[int, int] = (0, 0)
    """Requests of canary and stable since this step began."""
    gate: Gate = field(default_factory=Gate)
    handled: str = ""
    """Id of the last command that was carried out."""
    history: tuple[Decision, ...] = ()
    apart: Mapping[str, str] = field(default_factory=dict)
    """What has differed while this rollout ran; see ``Seen``. It decides nothing."""
    silence: Silence | None = None
    """None while the canary answers, or nothing was asked of it."""

    @property
    def weight(self) -> float:
        """The canary's share in percent."""
        if self.phase in ("rolled_back", "aborted"):
            return 0.0
        return 100.0 if self.phase == "promoted" else self.steps[self.index]

    @property
    def mirror(self) -> float:
        """The percentage of stable's requests that is mirrored now."""
        return self.rules.mirror_first or self.rules.mirror if self.gate.lacks_pairs else self.rules.mirror

    @property
    def is_over(self) -> bool:
        """True when nothing will change any more."""
        return self.phase not in ("running", "paused")

    def to_json(self) -> dict[str, Any]:
        """Return everything, for the serving Task."""
        return {
            "endpoint": self.endpoint, "canary": self.canary, "stable": self.stable, "steps": list(self.steps),
            "min_requests": self.rules.min_requests, "step_s": self.rules.step_s,
            "variable": self.rules.variable, "mirror": self.rules.mirror,
            "mirror_first": self.rules.mirror_first, "mirror_wait_s": self.rules.mirror_wait_s, "index": self.index,
            "phase": self.phase, "state": self.state, "why": self.why, "weight": self.weight, "since": self.since,
            "compared": list(self.compared), "handled": self.handled, "gate": self.gate.to_json(),
            "apart": dict(self.apart),
            **({} if self.silence is None else {"silence": astuple(self.silence)}),
            "history": [decision.to_json() for decision in self.history],
        }  # fmt: skip

    @classmethod
    def from_json(cls, stored: Mapping[str, Any]) -> Rollout:
        """Return what ``to_json`` stored. Raises ``KeyError``, ``TypeError`` or ``ValueError`` for anything else."""
        return cls(
            endpoint=str(stored["endpoint"]), canary=str(stored["canary"]), stable=str(stored["stable"]),
            steps=tuple(float(s) for s in stored["steps"]),
            rules=Rules(int(stored["min_requests"]), float(stored["step_s"]), str(stored.get("variable", "")),
                        *(float(stored.get(name, 0.0)) for name in ("mirror", "mirror_first", "mirror_wait_s"))),
            index=int(stored["index"]), phase=stored["phase"], state=stored["state"], why=str(stored["why"]),
            since=float(stored["since"]), compared=(int(stored["compared"][0]), int(stored["compared"][1])),
            gate=Gate.from_json(stored["gate"]), handled=str(stored["handled"]),
            history=tuple(Decision(d["at"], d["what"], d["weight"], d["why"], d["evidence"])
                          for d in stored["history"]),
            apart={str(kind): str(how) for kind, how in stored.get("apart", {}).items()},
            silence=Silence(*stored["silence"]) if stored.get("silence") else None,
        )  # fmt: skip


def begun(rollout: Rollout, now: float) -> Rollout:
    """Return ``rollout`` at its first step."""
    return _decided(replace(rollout, since=now), now, "start", f"{rollout.canary} beside {rollout.stable}")


def commanded(rollout: Rollout, command: Command, command_id: str, now: float, who: str = "") -> Rollout:
    """Return ``rollout`` after a person's command; one that does not fit is recorded and changes nothing else."""
    rollout = replace(rollout, handled=command_id)
    by = f"asked for{f' by {who}' if who else ''}"
    if rollout.is_over:
        return _decided(rollout, now, f"{command} refused", f"the rollout is {rollout.phase}")
    if command == "abort":
        return _ended(rollout, "aborted", now, "abort", by)
    if command == "promote":
        return _ended(rollout, "promoted", now, "promote", by)
    if command == "pause":
        return _decided(replace(rollout, phase="paused", why=by), now, "pause", by)
    # What was compared before the pause stays in the gate; the step itself begins anew.
    resumed = replace(rollout, phase="running", state="waiting", why="", since=now, compared=(0, 0))
    return _decided(resumed, now, "resume", by)


def looked(rollout: Rollout, seen: Seen, now: float) -> Rollout:
    """Return ``rollout`` after one look; the only place where it moves by itself."""
    if rollout.is_over:
        return rollout
    if seen.foreign:
        if rollout.phase == "paused":
            return rollout
        return _decided(replace(rollout, phase="paused", why=seen.foreign), now, "pause", seen.foreign)
    gate = rollout.gate.after(seen.canary, seen.stable)
    both = bool(seen.canary.requests and seen.stable.requests)
    compared = rollout.compared
    if both and not seen.lagging:
        compared = (compared[0] + seen.canary.requests, compared[1] + seen.stable.requests)
    news = [how for kind, how in seen.apart.items() if kind not in rollout.apart]
    rollout = replace(rollout, gate=gate, compared=compared, apart={**rollout.apart, **seen.apart})
    if news:
        rollout = _decided(rollout, now, "differs", f"{rollout.canary}: {'; '.join(news)}")
    if gate.is_bad:
        why = (
            f"{rollout.canary} is worse than {rollout.stable}: {gate.reason()} (evidence {gate.evidence:.3g}, "
            f"{THRESHOLD:g} suffice){_beside(rollout)}"
        )
        return _ended(rollout, "rolled_back", now, "roll back", why)
    rollout = _listened(rollout, seen, now)
    if (silence := rollout.silence) is not None and _is_dead(rollout, silence, now):
        why = (
            f"{rollout.canary} answered nothing for {now - silence.since:.0f} s: it had no room for any of "
            f"{silence.refused} requests, while {rollout.stable} answered {silence.stable}"
        )
        return _ended(rollout, "rolled_back", now, "roll back", why)
    state, why = _judged(rollout, seen, now)
    rollout = replace(rollout, state=state, why=why if rollout.phase == "running" else rollout.why)
    if rollout.phase == "paused" or state != "healthy":
        return rollout
    why = (
        f"{compared[0]} requests compared with {compared[1]} of {rollout.stable}, evidence {gate.evidence:.3g}; "
        f"{_unseen(gate)}{_beside(rollout)}"
    )
    if rollout.index + 1 >= len(rollout.steps) or rollout.steps[rollout.index + 1] >= 100:
        return _ended(rollout, "promoted", now, "promote", why)
    grown = replace(rollout, index=rollout.index + 1, since=now, compared=(0, 0), gate=gate.renewed(), state="waiting",
                    why="")  # fmt: skip
    return _decided(grown, now, "step", why)


def put_right(rollout: Rollout, now: float, why: str) -> Rollout:
    """Return ``rollout`` after its weights were written again; nothing else of it changes."""
    return _decided(rollout, now, "put right", why)


def _listened(rollout: Rollout, seen: Seen, now: float) -> Rollout:
    """Return ``rollout`` with what is known of a canary that answers nothing."""
    if seen.canary.requests:
        return replace(rollout, silence=None)
    if rollout.silence is None and not seen.canary.refused:
        return rollout
    return replace(rollout, silence=(rollout.silence or Silence(now)).after(seen))


def _is_dead(rollout: Rollout, silence: Silence, now: float) -> bool:
    """Say whether a canary has refused for so long, while stable had room, that waiting would never end."""
    is_enough = min(silence.refused, silence.stable) >= rollout.rules.min_requests
    return is_enough and now - silence.since >= _SILENT_STEPS * rollout.rules.step_s


def _judged(rollout: Rollout, seen: Seen, now: float) -> tuple[State, str]:
    if seen.missing:
        return "holding", f"no data from {', '.join(seen.missing)}"
    if seen.lagging:
        return "waiting", f"{', '.join(seen.lagging)} does not route by these weights yet"
    most = rollout.rules.min_requests
    fewest = min(rollout.compared)
    if fewest < most:
        return (
            "waiting",
            f"compared {rollout.compared[0]} canary and {rollout.compared[1]} stable requests of {most} each",
        )
    if rollout.gate.evidence >= DOUBT:
        return "inconclusive", f"evidence {rollout.gate.evidence:.3g}: neither healthy nor enough to roll back"
    left = rollout.rules.step_s - (now - rollout.since)
    if left > 0:
        return "waiting", f"no fault found; {left:.0f} s left of this step"
    left = rollout.rules.mirror_wait_s - (now - rollout.since)
    if left > 0 and rollout.index == 0 and rollout.gate.lacks_pairs:
        return "waiting", f"no fault found; {_too_few_pairs(rollout.gate)}; {left:.0f} s left for them"
    return "healthy", "no fault found"


def _beside(rollout: Rollout) -> str:
    """Say what else a reader of the verdict must know: whether it was fair, and whether answers differ."""
    return "".join(f"; {how}" for how in rollout.apart.values())


def _unseen(gate: Gate) -> str:
    """Say how small a fault may be that so many requests would not have shown."""
    found, words = gate.could_see(), []
    for name, text in (
        ("errors", "{:.1%} errors"), ("latency", "{:.2g} times as slow"), ("labels", "labels moved by {:.0%}"),
        ("pairs", "{:.1%} other answers"),
    ):  # fmt: skip
        if name in found:
            least = found[name]
            words.append(f"no {name} at all" if least is None else text.format(least))
    blind = f"; {_too_few_pairs(gate)}" if gate.lacks_pairs else ""
    return f"what is smaller would not have been seen: {', '.join(words)}{blind}"


def _too_few_pairs(gate: Gate) -> str:
    assert gate.pairs is not None  # noqa: S101 - who asks has seen that they are compared
    most = gate.pairs.most
    return (
        f"only {gate.pairs.compared} of the {gate.enough_pairs} mirrored answers were compared that tell "
        f"{sight.twice(most):.1%} other ones from the {most:.1%} permitted"
    )


def _ended(rollout: Rollout, phase: Phase, now: float, what: str, why: str) -> Rollout:
    return _decided(replace(rollout, phase=phase, state="over", why=why), now, what, why)


def _decided(rollout: Rollout, now: float, what: str, why: str) -> Rollout:
    decision = Decision(now, what, rollout.weight, why, rollout.gate.describe())
    return replace(rollout, history=(*rollout.history, decision)[-_MAX_HISTORY:])

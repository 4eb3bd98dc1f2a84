"""The laws of the plan, over any situation."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from deploy.sync.plan import Grace, Observed, Situation, Wanted, dispensable, plan

NAMES = st.sampled_from(["a-1", "a-2", "b-1", "b-2", "c-1"])
STATES = st.sampled_from(["absent", "loading", "ready", "unloading", "failed"])


def url(name):
    """Return the endpoint of a name."""
    return name[0]


@st.composite
def wanteds(draw):
    """Any desired state."""
    chosen = {url(n): n for n in draw(st.lists(NAMES, max_size=5))}  # one model per endpoint
    return {n: Wanted(n, url(n), draw(st.sampled_from(["r1", "r2"]))) for n in chosen.values()}


@st.composite
def observeds(draw):
    """Any observation."""
    return {
        n: Observed(
            n,
            url(n),
            draw(st.sampled_from([None, "r1", "r2"])),
            draw(STATES),
            draw(st.none() | st.floats(0, 100)),
            draw(st.booleans()),
        )
        for n in draw(st.lists(NAMES, max_size=5, unique=True))
    }


SITUATIONS = st.builds(
    Situation,
    triton_answers=st.booleans(),
    holds_all=st.booleans(),
    held_urls=st.frozensets(st.sampled_from("abc")),
    busy=st.frozensets(NAMES),
    retry_in=st.dictionaries(NAMES, st.floats(-5, 5)),
    unwanted_for=st.dictionaries(NAMES, st.floats(0, 1000)),
)


def apply(actions, wanted, observed):
    """Do the steps as a Triton without faults would."""
    seen = dict(observed)
    for action in actions:
        now = seen.get(action.name, Observed(action.name, url(action.name)))
        match action.kind:
            case "write":
                seen[action.name] = replace(now, recipe=wanted[action.name].recipe)
            case "load":
                assert now.recipe is not None, "loaded before it was written"
                seen[action.name] = replace(now, state="ready", is_damaged=False)
            case "unload":
                seen[action.name] = replace(now, state="absent")
            case "remove":
                assert now.state in ("absent", "failed"), "removed while loaded"
                seen.pop(action.name, None)
    return seen


@given(wanteds(), observeds())
def test_applying_plans_to_what_is_observed_gives_what_is_wanted(wanted, observed):
    """Within three rounds (successors first, those they replace are unloaded, then removed), and then nothing is left
    to do.
    """
    finished = {"loading": "ready", "unloading": "absent"}
    seen = {name: replace(one, state=finished.get(one.state, one.state)) for name, one in observed.items()}
    for _ in range(3):
        situation = Situation(unwanted_for=dict.fromkeys(seen, 10_000.0))
        seen = apply(plan(wanted, seen, situation), wanted, seen)
    assert {n: (w.recipe, "ready") for n, w in wanted.items()} == {n: (o.recipe, o.state) for n, o in seen.items()}
    assert {"keep"} >= {a.kind for a in plan(wanted, seen, Situation())}


@given(wanteds(), observeds(), SITUATIONS)
def test_every_model_appears_and_a_busy_or_waiting_one_is_only_kept(wanted, observed, situation):
    """Total, whatever is seen; a failed model waits for its time."""
    actions = plan(wanted, observed, situation)
    assert set(wanted) | set(observed) == {a.name for a in actions}
    waiting = situation.busy | {n for n, left in situation.retry_in.items() if left > 0}
    assert all(a.kind == "keep" for a in actions if a.name in waiting)


@given(wanteds(), observeds(), SITUATIONS, NAMES, STATES)
def test_a_model_never_changes_the_steps_of_another_endpoints_model(wanted, observed, situation, name, state):
    """Whatever happens to one endpoint's models, the others' steps stay the same."""
    before = {a for a in plan(wanted, observed, situation) if url(a.name) != url(name)}
    changed = {**observed, name: Observed(name, url(name), "r1", state)}
    retry = {**situation.retry_in, name: 5.0}
    after = {a for a in plan(wanted, changed, replace(situation, retry_in=retry)) if url(a.name) != url(name)}
    assert before == after


@given(wanteds(), observeds(), SITUATIONS)
def test_nothing_is_taken_away_while_it_may_be_needed(wanted, observed, situation):
    """Wanted, held, unknown desired state, successor not ready, within the grace period: it stays."""
    gone = {a.name for a in plan(wanted, observed, situation) if a.kind in ("unload", "remove")}
    assert gone <= dispensable(wanted, observed, situation)
    for name in gone:
        assert name not in wanted
        assert not situation.holds_all
        assert url(name) not in situation.held_urls
        assert situation.unwanted_for.get(name, 0) >= situation.grace.settle_s
        successor = {w.url: n for n, w in wanted.items()}.get(url(name))
        assert successor is None or observed[successor].state == "ready"


def kinds(actions, name):
    """Return the steps of one model."""
    return [a.kind for a in actions if a.name == name]


def test_a_called_model_stays_until_it_is_idle_but_not_for_ever():
    """Gateways that did not move over yet keep their model, up to the limit."""
    seen = {"a-1": Observed("a-1", "a", "r1", "ready", idle_s=2.0)}
    grace = Grace(settle_s=30, idle_s=10, max_s=600)
    after = {
        s: kinds(plan({}, seen, Situation(grace=grace, unwanted_for={"a-1": s})), "a-1") for s in (29.0, 31.0, 601.0)
    }
    assert {29.0: ["keep"], 31.0: ["keep"], 601.0: ["unload"]} == after
    idle = {"a-1": replace(seen["a-1"], idle_s=11.0)}
    over = Situation(grace=grace, unwanted_for={"a-1": 31.0})
    states = ["ready", "unloading", "absent", "failed"]
    found = [kinds(plan({}, {"a-1": replace(idle["a-1"], state=state)}, over), "a-1") for state in states]
    assert [["unload"], ["keep"], ["remove"], ["remove"]] == found


def test_without_triton_models_are_written_and_wait():
    """Downloads need no Triton; loading does."""
    actions = plan({"a-1": Wanted("a-1", "a", "r1")}, {}, Situation(triton_answers=False))
    assert ["write"] == kinds(actions, "a-1")


def test_a_model_whose_processes_died_is_written_and_loaded_again():
    """Triton replaces it without a gap when its files are newer."""
    seen = {"a-1": Observed("a-1", "a", "r1", "ready", is_damaged=True)}
    assert ["write", "load"] == kinds(plan({"a-1": Wanted("a-1", "a", "r1")}, seen, Situation()), "a-1")


def test_a_model_that_gateways_still_call_is_loaded_again_after_a_restart_of_triton() -> None:
    """Its successor is not ready: an empty Triton needs what serves now as much as what is wanted."""
    seen = {"old": Observed("old", "e", "r", "absent"), "new": Observed("new", "e", None, "absent")}
    steps = plan({"new": Wanted("new", "e", "r")}, seen, Situation(retry_in={"new": 5.0}))
    assert [("load", "old")] == [(s.kind, s.name) for s in steps if s.name == "old"]
    held = Situation(held_urls=frozenset({"e"}))
    steps = plan({}, {"old": Observed("old", "e", "r", "absent")}, held)
    assert ["load"] == [s.kind for s in steps]

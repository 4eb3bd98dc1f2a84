"""The laws of the plan, over any model in any situation."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from deploy.sync.plan import Model, plan
from deploy.sync.settings import Grace

GRACE = Grace(settle_s=30, idle_s=10, move_s=600)
RECIPES = st.sampled_from(["r1", "r2"])
FACTS = {
    "state": st.sampled_from(["absent", "loading", "ready", "unloading", "failed"]), "is_damaged": st.booleans(),
    "retry_in": st.floats(-5, 5), "quiet_s": st.floats(0, 100), "is_busy": st.booleans(), "is_cold": st.booleans(),
}  # fmt: skip
WANTED = st.builds(
    Model, name=st.just("a-1"), url=st.just("a"), wanted=RECIPES, recipe=st.none() | RECIPES,
    unload_after=st.sampled_from([0.0, 50.0]), **FACTS,
)  # fmt: skip
UNWANTED = st.builds(
    Model, name=st.just("a-1"), url=st.just("a"), recipe=RECIPES, needed=st.sampled_from(["", "its successor is not"]),
    unneeded_for=st.floats(0, 1000), has_moved=st.booleans(), **FACTS,
)  # fmt: skip


def done(model, *, triton_answers=True):
    """The model after its steps, in a Triton without faults."""
    for step in plan(model, triton_answers=triton_answers, grace=GRACE).steps:
        match step:
            case "write":
                model = replace(model, recipe=model.wanted)
            case "load":
                assert model.recipe is not None, "loaded before it was written"
                model = replace(model, state="ready", is_damaged=False, quiet_s=0.0)
            case "unload":
                model = replace(model, state="absent", is_cold=model.wanted is not None)
            case "remove":
                assert model.state in ("absent", "failed"), "removed while loaded"
                model = replace(model, recipe=None)
    return model


@given(WANTED | UNWANTED)
def test_steps_take_a_model_to_what_is_wanted_and_then_end(model):
    """Whatever was seen, once what is in progress has ended. One whose processes died is written again, too: Triton
    replaces it without a gap when its files are newer.
    """
    finished = {"loading": "ready", "unloading": "absent"}
    model = replace(model, is_busy=False, retry_in=0.0, needed="", unneeded_for=10_000.0, quiet_s=100.0, is_cold=False,
                    unload_after=0.0, state=finished.get(model.state, model.state))  # fmt: skip
    if model.is_damaged and model.wanted is not None:
        assert ("write", "load") == plan(model, triton_answers=True, grace=GRACE).steps
    model = done(done(model))
    assert model.recipe == model.wanted
    assert (model.state == "ready") is (model.wanted is not None)
    assert done(model) == model


@given(WANTED | UNWANTED, st.booleans())
def test_a_busy_or_waiting_model_is_left_alone(model, triton_answers):
    """A failed one waits for its time; without Triton a model is only written."""
    steps = plan(model, triton_answers=triton_answers, grace=GRACE).steps
    assert not steps or not (model.is_busy or model.retry_in > 0)
    assert triton_answers or set(steps) <= {"write"}


@given(UNWANTED)
def test_nothing_is_taken_away_while_it_may_be_needed(model):
    """Needed, within the grace period, or called: it stays. One that is needed and lost is loaded again."""
    steps = plan(model, triton_answers=True, grace=GRACE).steps
    if {"unload", "remove"} & {*steps}:
        assert not model.needed
        assert model.unneeded_for >= (600 if model.has_moved else 30)
        assert model.state != "ready" or model.quiet_s >= 10
    if model.needed and not model.is_busy and model.retry_in <= 0:
        assert steps == (("load",) if model.state == "absent" else ())


@given(WANTED)
def test_only_an_idle_model_that_may_be_cold_is_unloaded_though_it_is_wanted(model):
    """And a cold one is not loaded."""
    steps = plan(model, triton_answers=True, grace=GRACE).steps
    if "unload" in steps:
        assert model.quiet_s >= model.unload_after > 0
    if model.is_cold and model.state == "absent" and model.recipe == model.wanted and not model.is_damaged:
        assert () == steps

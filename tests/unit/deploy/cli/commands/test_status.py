"""``triton-gateway status``: the lines below the table."""

from __future__ import annotations

from deploy.cli.commands.status import describe


def test_what_a_bare_name_means_and_what_pooling_outside_costs_is_told() -> None:
    """The lines also say if the default version is not served."""
    status = {
        "ready": True, "defaults": {"faq": "faq/1", "old": "old/1"},
        "endpoints": [
            {"url": "faq/1", "state": "serving", "details": {"token_vectors": True}},
            {"url": "old/2", "state": "serving", "details": {}},
        ],
    }  # fmt: skip
    lines = describe("http://g", status)
    assert "default version of faq: faq/1" in lines
    assert "default version of old: old/1, which is not served" in lines
    (note,) = [line for line in lines if line.startswith("note")]
    assert "faq/1" in note
    assert "deploy" in note


def test_what_is_told_of_many_is_told_once() -> None:
    """Models that share a file have one long fault each."""
    shared = "has the same file as others (…)"
    status = {
        "ready": True, "faults": [{"subject": f"model {name}", "message": shared} for name in "abc"],
        "pending": [{"url": f"f/{n}", "state": "loading", "reason": "waits"} for n in range(12)],
    }  # fmt: skip
    lines = describe("http://g", status)
    assert [f"fault in model a, model b, model c: {shared}"] == [line for line in lines if shared in line]
    (loading,) = [line for line in lines if "loading: waits" in line]
    assert loading.endswith("f/9 and 2 more: loading: waits")


def test_a_canary_that_one_version_answers_alone_is_shown_as_finished() -> None:
    """After a rollout under a name that is no endpoint's; one that splits requests is shown with its shares."""
    status = {"ready": True, "canaries": {"zc": {"clf/3": 1.0, "clf/1": 0.0}, "clf": {"clf/3": 0.1, "clf/1": 0.9}}}
    lines = describe("http://g", status)
    assert "canary zc: finished, clf/3 answers all" in lines
    assert 'canary clf: {"clf/3": 0.1, "clf/1": 0.9}' in lines


def test_a_rollout_that_runs_is_told_with_its_guard() -> None:
    """One that has ended is not."""
    one = {"canary": "clf/3", "weight": 5.0, "why": "too few requests", "guard": "host 1a2b", "phase": "running"}
    told = [{**one, "endpoint": "clf"}, {**one, "endpoint": "zc", "guard": ""},
            {**one, "endpoint": "old", "phase": "promoted"}]  # fmt: skip
    assert [
        "rollout clf: clf/3 has 5 %, running, guarded by host 1a2b: too few requests",
        "rollout zc: clf/3 has 5 %, running, nobody guards it: too few requests",
    ] == [line for line in describe("http://g", {"ready": True, "rollouts": told}) if "rollout" in line]


def test_an_endpoint_that_a_stale_write_has_lost_is_told_with_the_command_that_restores_it() -> None:
    """The gateway has it from the controller."""
    told = [{"endpoint": "faq/2", "restore": "clearml-serving --id t model add --endpoint faq"}]
    (line,) = (one for one in describe("http://g", {"ready": True, "lost": told}) if one.startswith("lost faq/2"))
    assert line.endswith("if it was not removed on purpose: clearml-serving --id t model add --endpoint faq")

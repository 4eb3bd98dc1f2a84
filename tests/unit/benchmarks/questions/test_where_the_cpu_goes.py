"""Profiles are counted by function and name no machine."""

from __future__ import annotations

from benchmarks.questions.where_the_cpu_goes import count, function_of


def test_profiles_are_counted_by_function() -> None:
    """Lines of one function are one, recursion counts once, sleeping threads do not count, machine paths go."""
    shares = count([
        "run (/x/lib/python3.11/site-packages/uvicorn/main.py:3);f (gateway/a.py:1);f (gateway/a.py:2) 6",
        "run (/x/lib/python3.11/site-packages/uvicorn/main.py:9) 2",
        "run (/x/site-packages/uvicorn/main.py:9);epoll_wait (libc.so.6) 50",
        "not a stack",
    ])  # fmt: skip
    assert 8 == shares.total
    assert {"f (gateway/a.py)": 6, "run (uvicorn/main.py)": 2} == shares.own
    assert {"f (gateway/a.py)": 6, "run (uvicorn/main.py)": 8} == shares.within
    assert "plain" == function_of("plain")

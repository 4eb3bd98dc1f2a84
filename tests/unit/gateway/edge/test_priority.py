"""What class a request has: what it asks for, within what its key allows."""

from __future__ import annotations

import pytest

from gateway.callers.access import Access
from gateway.callers.rights import Caller
from gateway.edge.priority import flow_of, seems_critical
from gateway.errors import RequestError
from gateway.trace import BATCH, CRITICAL, DEFAULT, DEFAULT_FLOW, Flow


def test_who_has_to_show_nothing_may_ask_for_any_class() -> None:
    """And waits among everybody if it says nothing."""
    assert DEFAULT_FLOW is flow_of(b"", None)
    assert DEFAULT_FLOW is flow_of(b"default", None)
    assert Flow(CRITICAL, "") == flow_of(b"Critical ", None)


def test_a_key_limits_the_class() -> None:
    """Its own is the most important it gets; a less important one may be asked for."""
    caller = Caller("k", "acme")
    assert Flow(DEFAULT, "acme") == flow_of(b"", caller)
    assert Flow(DEFAULT, "acme") == flow_of(b"critical", caller)
    assert Flow(BATCH, "acme") == flow_of(b"batch", caller)
    assert Flow(CRITICAL, "acme") == flow_of(b"", Caller("k", "acme", priority="critical"))


def test_another_word_is_the_callers_mistake() -> None:
    """It would be taken for something."""
    with pytest.raises(RequestError, match="critical, default, batch"):
        flow_of(b"\xff", None)


def test_an_unread_head_seems_critical_by_what_it_says_or_by_whose_it_is() -> None:
    """However it is written; who has shown the same key lately is known by it, and may not say more than that."""
    for line in (b"x-priority: critical", b"X-Priority:critical", b"X-PRIORITY: \tCRITICAL "):
        assert seems_critical(b"POST /serve/e HTTP/1.1\r\n%b\r\n\r\n" % line, None)
    for line in (b"x-priority: default", b"x-note: x-priority: critical", b"x-priority: critically"):
        assert not seems_critical(b"POST /serve/e HTTP/1.1\r\n%b\r\n\r\n" % line, None)
    access = Access()
    for priority in ("critical", "default"):
        access._recent[f"Bearer {priority}".encode()] = Caller(priority, "t", priority=priority)
    head = b"POST / HTTP/1.1\r\nAuthorization: Bearer %b\r\nx-priority: %b\r\n\r\n"
    assert seems_critical(head % (b"critical", b"default"), access)
    assert not seems_critical(head % (b"default", b"critical"), access)
    assert seems_critical(head % (b"unknown", b"critical"), access)

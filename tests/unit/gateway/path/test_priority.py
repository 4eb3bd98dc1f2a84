"""The class of a request: the one it asks for, within the limit of its key."""

from __future__ import annotations

import pytest

from gateway.callers.rights import Caller
from gateway.errors import RequestError
from gateway.path.admission import flow_of
from gateway.trace import BATCH, CRITICAL, DEFAULT, DEFAULT_FLOW, Flow


def test_without_keys_a_request_may_ask_for_any_class() -> None:
    """The default class is the middle one."""
    assert DEFAULT_FLOW is flow_of(b"", None)
    assert DEFAULT_FLOW is flow_of(b"default", None)
    assert Flow(CRITICAL, "") == flow_of(b"Critical ", None)


def test_a_key_limits_the_class() -> None:
    """A request may ask for the key's class or a less important one."""
    caller = Caller("k", "acme")
    assert Flow(DEFAULT, "acme") == flow_of(b"", caller)
    assert Flow(DEFAULT, "acme") == flow_of(b"critical", caller)
    assert Flow(BATCH, "acme") == flow_of(b"batch", caller)
    assert Flow(CRITICAL, "acme") == flow_of(b"", Caller("k", "acme", priority="critical"))


def test_an_unknown_class_is_a_client_error() -> None:
    """Otherwise it would silently mean another class."""
    with pytest.raises(RequestError, match="critical, default, batch"):
        flow_of(b"\xff", None)

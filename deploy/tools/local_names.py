"""The names by which programs of this machine ask a server on loopback: the gateway's, for the other servers, too."""

from __future__ import annotations

from gateway.local_names import are_local, is_loopback

__all__ = ["are_local", "is_loopback"]

"""Which urls are served and which are awaited, as readiness asks (``health.ServedUrls``). Reads ``versions``."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from gateway.control.version import Versions


class ServedUrls:
    """Answers the questions of readiness. For use by one event loop."""

    def __init__(self, versions: Versions) -> None:
        self._versions = versions
        self.previously_served: frozenset[str] | None = None
        """Urls that were served before this process started; None if no file says so. Shrinks only."""
        self._waits_until = 0.0

    def configured(self) -> None:
        """Drop previously served urls that are not configured any more."""
        urls, before = self._versions.urls, self.previously_served
        # If no file says what was served before, assume every configured url was.
        self.previously_served = urls if before is None else before & urls

    def begin_wait(self, seconds: float) -> None:
        """Wait for previously served urls from now on, at most so long."""
        self._waits_until = asyncio.get_running_loop().time() + seconds

    def needs(self) -> dict[str, str]:
        """Return each served url with the address of the Triton that it needs, or with an empty string."""
        return {
            url: version.plan.triton_address if version.plan is not None and version.endpoint.identity.triton_name
            else "" for url, version in self._versions.served().items() if version.endpoint is not None
        }  # fmt: skip

    def unserved(self) -> dict[str, str]:
        """Return each url that is configured but not served, with its state and reason."""
        return {
            url: f"{'has' if one.state == 'failed' else 'is'} {one.state}: {one.reason}"
            for url, one in sorted(self._versions.pending().items()) if self._versions.serving(url) is None
        }  # fmt: skip

    def awaited(self) -> Sequence[str]:
        """Return the urls that start-up still waits for: served before this process started, and may still serve."""
        if asyncio.get_running_loop().time() >= self._waits_until:
            return ()
        return [url for url in sorted(self.previously_served or ()) if self._versions.may_still_serve(url)]

    def coming(self) -> list[str]:
        """Return the urls that were served before this process started and are in their first build."""
        pending = self._versions.pending()
        known = [url for url in sorted(self.previously_served or ()) if self._versions.may_still_serve(url)]
        return [url for url in known if url in pending and pending[url].state == "pending"]

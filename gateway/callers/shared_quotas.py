"""Quotas that all gateways share: buckets on a Redis or Valkey server, asked once for each request of a limited tenant.

The only file of the gateway that imports ``redis``. It is imported only if a store is set. While the store is away,
each worker admits its share (``quotas``).
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, Final, TypeVar
from urllib.parse import unquote, urlsplit

from redis.asyncio import Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.credentials import CredentialProvider
from redis.exceptions import RedisError

from gateway.callers.quotas import REQUESTS, TOKENS, Quota, estimate_of, seconds_of

_log = logging.getLogger("triton_gateway.callers")

Reply = TypeVar("Reply")

CHECK_S: Final = 5.0
"""Seconds between two questions whether the store is there. While name servers are silent, each occupies a thread."""
TIMEOUT_S: Final = 0.5
"""The most seconds that a request waits for the store."""
_MAX_CONNECTIONS: Final = 16
"""The most connections of one worker. A reply takes less than a millisecond, so these are seldom all in use."""
_KEEP_S: Final = 3600
"""Seconds after which the store forgets a tenant that nobody asks about; by then its buckets are full."""
_SCHEMES: Final = {"valkey": "redis", "valkeys": "rediss"}
_NONE: Final = -1.0
"""An infinite limit, as the script is told."""

# One hash for each tenant: when it was changed (seconds of the server's clock, so that workers need no common one),
# and what its two buckets held. A server runs a script as one step. It takes a request and its tokens, or nothing.
SCRIPT: Final = """
local clock = redis.call('TIME')
local now = clock[1] + clock[2] / 1000000
local saved = redis.call('HMGET', KEYS[1], 'at', 'requests', 'tokens')
local left, lacks = {}, 0
for k = 1, 2 do
  local limit, wanted, owed = tonumber(ARGV[3 * k - 2]), tonumber(ARGV[3 * k - 1]), tonumber(ARGV[3 * k])
  left[k] = false
  if limit >= 0 then
    local since = math.max(0, now - (tonumber(saved[1]) or now))  -- the clock of a replica may be behind
    left[k] = math.min(limit, (tonumber(saved[k + 1]) or limit) + since * limit / 60 - owed)
    local needed = math.min(wanted, limit)  -- more than it can hold is admitted when it is full
    if lacks == 0 and (left[k] < needed or needed == 0) then lacks = k end
  end
end
for k = 1, 2 do
  if left[k] and lacks == 0 then left[k] = left[k] - ARGV[3 * k - 1] end
  left[k] = left[k] and string.format('%.17g', left[k]) or ''
end
redis.call('HSET', KEYS[1], 'at', string.format('%.17g', now), 'requests', left[1], 'tokens', left[2])
redis.call('EXPIRE', KEYS[1], ARGV[7])
return {lacks, left[1], left[2]}
"""


class _Password(CredentialProvider):
    """Reads the password for every new connection, so that a replaced file is used."""

    def __init__(self, user: str, path: str) -> None:
        self._user, self._path = user, path

    def get_credentials(self) -> tuple[str] | tuple[str, str]:
        password = Path(self._path).read_text().strip()
        return (self._user, password) if self._user else (password,)


class SharedQuotas:
    """Admits requests through the store at ``url`` (``redis``, ``rediss``, ``valkey``, ``valkeys``), on one event loop.

    ``password_file``: read for each connection; empty for none. ``report(address, is_good)`` is called when the store
    was found there or away.
    """

    def __init__(
        self, url: str, password_file: str = "", report: Callable[[str, bool], None] = lambda _address, _is_good: None
    ) -> None:  # fmt: skip
        parts = urlsplit(url)
        self.address = f"{parts.hostname}:{parts.port or 6379}"
        scheme = _SCHEMES.get(parts.scheme, parts.scheme)
        options: dict[str, Any] = {}
        if password_file:
            options["credential_provider"] = _Password(unquote(parts.username or ""), password_file)
        host = parts.netloc.rpartition("@")[2] if password_file else parts.netloc
        self._client: Redis = Redis.from_url(
            f"{scheme}://{host}{parts.path}", socket_timeout=TIMEOUT_S, socket_connect_timeout=TIMEOUT_S,
            retry=Retry(NoBackoff(), 0), protocol=2, **options,
        )  # fmt: skip
        self._script = self._client.register_script(SCRIPT)
        self._places = asyncio.Semaphore(_MAX_CONNECTIONS)
        self._report = report
        self.is_good: bool | None = None
        """Whether the store is in use; None before the first answer."""

    async def admit(self, quota: Quota, size: int) -> int:
        """As ``Quota.admit``, of what the tenant has left over all workers; of the worker's share without the store.

        The store takes what the tenant owes in any case, and if there is enough one request and its tokens.
        """
        estimate, owed, quota.owed = estimate_of(size), quota.owed, 0.0
        taken = await self._ask(lambda: self._take(quota, estimate, owed)) if self.is_good else None
        if taken is None:
            return quota.admit(size, time.monotonic())
        lacks, requests, tokens = taken
        if not lacks:
            return estimate
        needed, left, limit = (
            (1, requests, quota.limits.requests_per_minute) if lacks == REQUESTS
            else (estimate, tokens, quota.limits.tokens_per_minute)
        )  # fmt: skip
        raise quota.refusal(lacks, seconds_of(max(min(needed, limit), 1.0) - left, limit))

    async def _take(self, quota: Quota, tokens: int, owed: float) -> tuple[str, float, float]:
        """Return the limit for which nothing was taken, empty if a request was, and the requests and tokens left."""
        limits = quota.limits.requests_per_minute, quota.limits.tokens_per_minute
        requests_limit, tokens_limit = (limit if limit < math.inf else _NONE for limit in limits)
        lacks, *left = await self._script(
            keys=[f"triton-gateway:quota:{quota.tenant}"],
            args=[requests_limit, 1, 0, tokens_limit, tokens, owed, _KEEP_S],
        )
        requests_left, tokens_left = (float(one) if one else math.inf for one in left)
        return ("", REQUESTS, TOKENS)[lacks], requests_left, tokens_left

    async def run(self) -> None:
        """Check again and again whether the store is there, until cancelled. A request that it does not answer ends its
        use, and only this begins it, so that requests do not wait for a store that is away.
        """
        task = asyncio.current_task()
        try:
            while task is not None and not task.cancelling():  # the client may swallow a cancellation
                if await self._ask(self._client.ping):
                    self._tell("")
                await asyncio.sleep(CHECK_S)
        finally:
            with contextlib.suppress(RedisError, OSError, TimeoutError):
                await self._client.connection_pool.disconnect()

    async def _ask(self, ask: Callable[[], Awaitable[Reply]]) -> Reply | None:
        """Return the store's reply; None, and it counts as away, if there is none within ``TIMEOUT_S``."""
        try:
            async with asyncio.timeout(TIMEOUT_S), self._places:
                return await ask()
        except (RedisError, OSError, TimeoutError, ValueError, TypeError, IndexError) as error:
            self._tell(f"{type(error).__name__}: {error or f'no reply within {TIMEOUT_S:g} s'}")
            return None

    def _tell(self, problem: str) -> None:
        is_good = not problem
        if is_good and not self.is_good:
            _log.info("quotas are shared by all gateways through %s", self.address)
        elif not is_good and self.is_good is not False:
            _log.warning(
                "the store of quotas at %s is away (%s): each gateway admits its share until it is back",
                self.address, problem,
            )  # fmt: skip
        self.is_good = is_good
        self._report(self.address, is_good)

"""Quotas that all gateways share: buckets on a Redis or Valkey server, asked once for each request of a limited tenant.

The only file of the gateway that imports ``redis``. It is imported only if a store is set. While the store is away,
each worker admits its share (``quotas``). A store that answers also fills the worker's own buckets with its share of
what is left, for the headers of answers and for the time that it is away.
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final
from urllib.parse import unquote, urlsplit

from redis.asyncio import Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.credentials import CredentialProvider
from redis.exceptions import RedisError

from gateway.callers.quotas import REQUESTS, TOKENS, Limits, Quota, estimate_of, seconds_of

_log = logging.getLogger("triton_gateway.callers")

CHECK_S: Final = 1.0
"""Seconds between two questions whether the store is there."""
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


class StoreAway(Exception):
    """The store does not answer, or not as it should; the message says why and holds no secret."""


@dataclass(frozen=True, slots=True)
class Taken:
    """The store's reply. ``lacks``: the limit for which nothing was taken; empty if a request was. ``requests`` and
    ``tokens``: what the tenant has left.
    """

    lacks: str
    requests: float
    tokens: float


@dataclass(slots=True)
class _State:
    is_good: bool | None = None
    problem: str = ""
    since: float = field(default_factory=time.time)


class SharedQuotas:
    """Admits requests through a store, for one event loop.

    ``report(address, is_good)`` is called when the store was asked: whether it answered.
    """

    def __init__(
        self, store: RedisStore, report: Callable[[str, bool], None] = lambda _address, _is_good: None
    ) -> None:  # fmt: skip
        self._store = store
        self._report = report
        self._state = _State()

    async def admit(self, quota: Quota, size: int) -> int:
        """As ``Quota.admit``, of what the tenant has left over all workers."""
        if not self._state.is_good:
            quota.owed = 0.0
            return quota.admit(size, time.monotonic())
        estimate, owed, quota.owed = estimate_of(size), quota.owed, 0.0
        try:
            taken = await self._store.take(quota.tenant, quota.limits, estimate, owed)
        except StoreAway as error:
            self._tell(str(error))
            return quota.admit(size, time.monotonic())
        now = time.monotonic()
        quota.requests.fill(taken.requests, now)
        quota.tokens.fill(taken.tokens, now)
        if taken.lacks:
            needed, left, limit = (
                (1, taken.requests, quota.limits.requests_per_minute) if taken.lacks == REQUESTS
                else (estimate, taken.tokens, quota.limits.tokens_per_minute)
            )  # fmt: skip
            return quota.refuse(taken.lacks, seconds_of(max(min(needed, limit), 1.0) - left, limit))
        return estimate

    async def run(self) -> None:
        """Ask again and again whether the store is there, until cancelled. A request that it does not answer ends its
        use, and only this begins it, so that requests do not wait for a store that is away.
        """
        try:
            while True:
                try:
                    await self._store.check()
                except StoreAway as error:
                    self._tell(str(error))
                else:
                    self._tell("")
                await asyncio.sleep(CHECK_S)
        finally:
            await self._store.close()

    def _tell(self, problem: str) -> None:
        state, is_good = self._state, not problem
        if is_good != state.is_good:
            state.since = time.time()
            if is_good:
                _log.info("quotas are shared by all gateways through %s", self._store.address)
            else:
                _log.warning(
                    "the store of quotas at %s is away (%s): each gateway admits its share until it is back",
                    self._store.address, problem,
                )  # fmt: skip
        state.is_good, state.problem = is_good, problem
        self._report(self._store.address, is_good)

    def status(self) -> dict[str, Any]:
        """Return for the status where the store is, whether it is in use, since when, and its problem."""
        state = self._state
        return {
            "address": self._store.address, "in_use": bool(state.is_good),
            "since": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(state.since)), "problem": state.problem or None,
        }  # fmt: skip


class _Password(CredentialProvider):
    """Reads the password for every new connection, so that a replaced file is used."""

    def __init__(self, user: str, path: str) -> None:
        self._user, self._path = user, path

    def get_credentials(self) -> tuple[str] | tuple[str, str]:
        password = Path(self._path).read_text().strip()
        return (self._user, password) if self._user else (password,)


class RedisStore:
    """The buckets of all tenants, on the server at ``url`` (``redis``, ``rediss``, ``valkey`` or ``valkeys``).

    ``password_file``: read for each connection; empty for none.
    """

    def __init__(self, url: str, password_file: str = "") -> None:
        parts = urlsplit(url)
        self._place = parts.hostname or "", parts.port or 6379
        self.address = f"{self._place[0]}:{self._place[1]}"
        scheme = _SCHEMES.get(parts.scheme, parts.scheme)
        options: dict[str, Any] = {}
        if password_file:
            options["credential_provider"] = _Password(unquote(parts.username or ""), password_file)
        host = parts.netloc.rpartition("@")[2] if password_file else parts.netloc
        self._client: Redis = Redis.from_url(
            f"{scheme}://{host}{parts.path}", socket_timeout=TIMEOUT_S, socket_connect_timeout=TIMEOUT_S,
            retry=Retry(NoBackoff(), 0), protocol=2, **options,
        )  # fmt: skip
        self._run = self._client.register_script(SCRIPT)
        self._places = asyncio.Semaphore(_MAX_CONNECTIONS)

    async def take(self, tenant: str, limits: Limits, tokens: int, owed: float) -> Taken:
        """Take ``owed`` tokens in any case, and if there is enough one request and ``tokens``.

        Bounded in time. Raises ``StoreAway``.
        """
        requests_limit, tokens_limit = (
            limit if limit < math.inf else _NONE for limit in (limits.requests_per_minute, limits.tokens_per_minute)
        )
        arguments = [requests_limit, 1, 0, tokens_limit, tokens, owed, _KEEP_S]
        try:
            async with asyncio.timeout(TIMEOUT_S), self._places:
                lacks, *left = await self._run(keys=[f"triton-gateway:quota:{tenant}"], args=arguments)
            requests_left, tokens_left = (float(one) if one else math.inf for one in left)
            return Taken(("", REQUESTS, TOKENS)[lacks], requests_left, tokens_left)
        except (RedisError, OSError, TimeoutError, ValueError, TypeError, IndexError) as error:
            raise _away(error) from error

    async def check(self) -> None:
        """Raise ``StoreAway`` unless the store answers.

        It looks up the server's name first. A look-up cannot be ended: while name servers do not answer, every attempt
        to connect would occupy one more of the process's threads, which others need. Here it is one.
        """
        try:
            await asyncio.get_running_loop().getaddrinfo(*self._place)
            async with asyncio.timeout(TIMEOUT_S):
                await self._client.ping()
        except (RedisError, OSError, TimeoutError, ValueError) as error:
            raise _away(error) from error

    async def close(self) -> None:
        """Close connections. Raises nothing."""
        try:
            await self._client.connection_pool.disconnect()
        except (RedisError, OSError, TimeoutError):
            return


def _away(error: Exception) -> StoreAway:
    return StoreAway(f"{type(error).__name__}: {error or f'no reply within {TIMEOUT_S:g} s'}")

"""The shared store of quotas on a Redis or Valkey server: one hash for each tenant, changed by one script.

The only file of the gateway that imports ``redis``. It is imported only if a store is set.

A hash has the field ``_`` (the buckets: name, time in ms, requests left, tokens left) and one field for each worker
(number of its report, time in ms at which its lease ends, requests and tokens spent, leased and wanted, concurrent
tokens held and wanted). The server runs a script as one step and with its own clock, so workers need no common time.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final
from urllib.parse import unquote, urlsplit

from redis.asyncio import Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.credentials import CredentialProvider
from redis.exceptions import NoScriptError, RedisError

from gateway.callers.shared_quotas import HOLD_S, KEEP_S, Grant, Report, StoreAway

TIMEOUT_S: Final = 0.5
"""The most seconds that connecting, or one reply, may take."""
STEP_TIMEOUT_S: Final = 1.0
"""The most seconds of a whole step."""
_SCHEMES: Final = {"valkey": "redis", "valkeys": "rediss"}
_NONE: Final = -1.0
"""An infinite limit, as the script is told."""

SCRIPT: Final = """
local clock = redis.call('TIME')
local now = clock[1] * 1000 + math.floor(clock[2] / 1000)
local worker, a = ARGV[1], {}
for i = 2, #ARGV do a[i - 1] = tonumber(ARGV[i]) end
local number, known, leaves, concurrent = a[1], a[2], a[3], a[4]
local held, wanted_held, hold_ms, keep_ms = a[5], a[6], a[7], a[8]
local of = {{}, {}}
for k = 1, 2 do
  for i, name in ipairs({'limit', 'spent', 'told', 'estimate', 'wanted', 'least'}) do
    of[k][name] = a[8 + 6 * (k - 1) + i]
  end
end
local function numbers(text)
  local found = {}
  for one in string.gmatch(text, '%S+') do found[#found + 1] = tonumber(one) end
  return found
end
local function text(...)
  local found = {}
  for i, one in ipairs({...}) do found[i] = string.format('%.17g', one) end
  return table.concat(found, ' ')
end

local state, mine, others = nil, nil, {}
local flat = redis.call('HGETALL', KEYS[1])
for i = 1, #flat, 2 do
  local name, value = flat[i], numbers(flat[i + 1])
  if name == '_' then state = value
  elseif name == worker then mine = value
  elseif value[2] > now then others[#others + 1] = value
  elseif value[2] + keep_ms < now then redis.call('HDEL', KEYS[1], name) end
end
if mine and number <= mine[1] then return {} end  -- a newer report was here first

local left = {}
for k = 1, 2 do
  local one = of[k]
  if not state then
    left[k] = one.estimate
  else
    local before = one.spent
    if mine then before = math.max(mine[2 + k], one.told)
    elseif known == 0 or known == state[1] then before = one.told end
    -- the clock of a replica that took over may be behind
    local refilled = math.min(one.limit, state[2 + k] + math.max(0, now - state[2]) * one.limit / 60000)
    left[k] = refilled - (one.spent - before)
  end
  left[k] = math.max(-one.limit, math.min(one.limit, left[k]))
end
local name = state and state[1] or (clock[1] * 1000000 + clock[2])

-- Each other worker keeps its lease, and can have its part of the whole if it wants that much. Of what nobody wants, a
-- worker takes half, for a sudden burst.
local n = #others + 1
local function grant(total, wanted, least, leased, wants)
  local kept, guarded, spare = 0, 0, total
  for _, other in ipairs(others) do
    kept = kept + other[leased]
    spare = spare - math.max(other[leased], other[wants])
    guarded = guarded + math.max(other[leased], math.min(other[wants], total / n))
  end
  local room = total - guarded
  if room < least then
    if total - kept >= least then room = least elseif least > total / n then room = 0 end
  end
  local granted = math.max(0, math.min(room, math.max(wanted, least, spare / 2)))
  return granted, math.max(0, total - kept - granted)
end

local lease, free = {0, 0}, {0, 0}
local may_hold = concurrent
if leaves == 0 then
  for k = 1, 2 do
    if of[k].limit >= 0 then lease[k], free[k] = grant(left[k], of[k].wanted, of[k].least, 4 + k, 6 + k) end
  end
  if concurrent >= 0 then may_hold = grant(concurrent, wanted_held, 0, 9, 10) end
  redis.call('HSET', KEYS[1], worker, text(number, now + hold_ms, of[1].spent, of[2].spent, lease[1], lease[2],
    of[1].wanted, of[2].wanted, math.max(held, may_hold), wanted_held))
else
  redis.call('HDEL', KEYS[1], worker)
end
redis.call('HSET', KEYS[1], '_', text(name, now, left[1], left[2]))
redis.call('PEXPIRE', KEYS[1], keep_ms)
return {text(name, left[1], left[2], lease[1], lease[2], free[1], free[2], may_hold)}
"""


class _Password(CredentialProvider):
    """Reads the password for every new connection, so that a replaced file is used."""

    def __init__(self, user: str, path: str) -> None:
        self._user, self._path = user, path

    def get_credentials(self) -> tuple[str] | tuple[str, str]:
        password = Path(self._path).read_text().strip()
        return (self._user, password) if self._user else (password,)


class RedisStore:
    """A ``QuotaStore`` on the server at ``url`` (``redis``, ``rediss``, ``valkey`` or ``valkeys``).

    ``password_file``: read for each connection; empty for none. ``authority``: PEM file that ``rediss`` trusts; empty
    for the system's. ``name``: prefix of all keys.
    """

    def __init__(self, url: str, *, password_file: str = "", authority: str = "", name: str = "triton-gateway") -> None:
        parts = urlsplit(url)
        self._place = parts.hostname or "", parts.port or 6379
        self.address = f"{self._place[0]}:{self._place[1]}"
        scheme = _SCHEMES.get(parts.scheme, parts.scheme)
        options: dict[str, Any] = {"ssl_ca_certs": authority} if authority else {}
        if password_file:
            options["credential_provider"] = _Password(unquote(parts.username or ""), password_file)
        host = parts.netloc.rpartition("@")[2] if password_file else parts.netloc
        self._name = name
        self._client: Redis = Redis.from_url(
            f"{scheme}://{host}{parts.path}", socket_timeout=TIMEOUT_S, socket_connect_timeout=TIMEOUT_S,
            retry=Retry(NoBackoff(), 0), protocol=2, **options,
        )  # fmt: skip
        self._digest = ""
        self._has_answered = False
        self._lookup: asyncio.Future[Any] | None = None

    async def step(self, reports: Sequence[Report]) -> list[Grant | None]:
        """See ``QuotaStore``."""
        try:
            async with asyncio.timeout(STEP_TIMEOUT_S):
                if not self._has_answered:
                    await self._look_up()
                if not reports:
                    await self._client.ping()
                    self._has_answered = True
                    return []
                try:
                    found = await self._run(reports)
                except NoScriptError:  # the server was restarted; nothing was changed
                    self._digest = ""
                    found = await self._run(reports)
                grants = [_grant(report, one) for report, one in zip(reports, found, strict=True)]
                self._has_answered = True
                return grants
        except (RedisError, OSError, TimeoutError, ValueError) as error:
            self._has_answered = False
            # A reply that comes late must never be taken for the reply to the next command.
            await self.close()
            said = str(error) or f"no reply within {STEP_TIMEOUT_S:g} s"
            raise StoreAway(f"{type(error).__name__}: {said}") from error

    async def _look_up(self) -> None:
        """Look the server's name up before connecting, once at a time.

        A look-up cannot be ended. While name servers do not answer, each attempt to connect would occupy one more of
        the process's threads, which others need.
        """
        if self._lookup is None:
            host, port = self._place
            self._lookup = asyncio.ensure_future(asyncio.get_running_loop().getaddrinfo(host, port))
            self._lookup.add_done_callback(_ended)
        lookup = self._lookup
        await asyncio.wait([lookup])  # unlike `await lookup`, it does not cancel it at a timeout
        self._lookup = None
        lookup.result()

    async def _run(self, reports: Sequence[Report]) -> list[Any]:
        if not self._digest:
            self._digest = str(await self._client.script_load(SCRIPT))
        async with self._client.pipeline(transaction=False) as pipeline:
            for report in reports:
                pipeline.evalsha(self._digest, 1, f"{self._name}:quota:{report.tenant}", *_arguments(report))
            found: list[Any] = await pipeline.execute()
        return found

    async def close(self) -> None:
        """See ``QuotaStore``."""
        try:
            await self._client.connection_pool.disconnect()
        except (RedisError, OSError, TimeoutError):
            return


def _ended(lookup: asyncio.Future[Any]) -> None:
    """Take note of its error, which nobody may wait for any more."""
    if not lookup.cancelled():
        lookup.exception()


def _arguments(report: Report) -> list[str | float]:
    found: list[str | float] = [
        report.worker, report.number, report.known, int(report.leaves), _limit(report.concurrent), report.held,
        report.wanted_held, HOLD_S * 1000, KEEP_S * 1000,
    ]  # fmt: skip
    for k in (0, 1):
        limit = _limit(report.limits[k])
        estimate = report.estimate[k] if limit >= 0 else 0.0
        found += [limit, report.spent[k], report.told[k], estimate, report.wanted[k], report.least[k]]
    return found


def _limit(value: float) -> float:
    return value if value < math.inf else _NONE


def _grant(report: Report, reply: Any) -> Grant | None:
    """Return the grant in a reply. Raises ``ValueError``."""
    if not isinstance(reply, list):
        raise ValueError("the reply is no list")  # noqa: TRY004 - a fault of the server, not of our code
    if not reply:
        return None
    bucket, left, more_left, lease, more_lease, free, more_free, held = (float(part) for part in reply[0].split())
    return Grant(
        int(bucket), (left, more_left), (lease, more_lease), (free, more_free),
        held if report.concurrent < math.inf else math.inf,
    )  # fmt: skip

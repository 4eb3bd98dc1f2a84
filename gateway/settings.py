"""All settings of a gateway process, read once from the environment; ``os.environ`` is read nowhere else.

Our names start with ``TRITON_GATEWAY_``. Variables of clearml-serving keep their names and meaning and are accepted as
aliases. Composition roots (``app``, ``__main__``, ``deploy``) pass values on; modules below them do not see this class.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Final, Literal

from pydantic import AliasChoices, BeforeValidator, Field
from pydantic_settings import BaseSettings, SettingsConfigDict

from gateway import pools
from gateway.local_names import is_loopback

_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0}
_DURATION = re.compile(r"\s*([0-9]*\.?[0-9]+)\s*(ms|s|min|m|h)?\s*$")


def parse_duration(value: object, *, bare_unit: str = "s") -> float:
    """Parse ``"5s"``, ``"500ms"``, ``"2m"``, ``"1h"`` or a bare number (in ``bare_unit``) to seconds.

    Raises ``ValueError`` for anything else, including negative values.
    """
    match = _DURATION.match(str(value))
    if not match:
        raise ValueError(f"{value!r} is not a duration; write 5s, 500ms, 2m or 1h")
    return float(match[1]) * _UNITS[match[2] or bare_unit]


_SIZES = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}
_SIZE = re.compile(r"\s*([0-9]*\.?[0-9]+)\s*([kmgt]?)(i?b)?\s*$", re.IGNORECASE)


def parse_size(value: object) -> int:
    """Parse ``"512M"``, ``"1.5GiB"`` or a bare number to bytes; units are powers of 1024.

    Raises ``ValueError`` for anything else.
    """
    match = _SIZE.match(str(value))
    if not match:
        raise ValueError(f"{value!r} is not a size; write 512M or 2G")
    return int(float(match[1]) * _SIZES[match[2].lower()])


def _clearml_poll(value: object) -> float:
    # CLEARML_SERVING_POLL_FREQ is in minutes without a unit, as in clearml-serving. A number, such as the default
    # (which is validated too), is in seconds like all others.
    return parse_duration(value, bare_unit="min" if isinstance(value, str) else "s")


LOCAL_NAMES = "TRITON_GATEWAY_LOCAL_NAMES"
"""Not a setting: passed by `up` to a gateway on loopback; the names, beside those of loopback, that it answers to."""


def _pools(value: object) -> str:
    pools.addresses(str(value))
    return str(value)


Pools = Annotated[str, BeforeValidator(_pools)]
Seconds = Annotated[float, BeforeValidator(parse_duration)]
Bytes = Annotated[int, BeforeValidator(parse_size)]
PollFrequency = Annotated[float, BeforeValidator(_clearml_poll)]


PREFIX: Final = "TRITON_GATEWAY_"


def _names(name: str, *aliases: str) -> AliasChoices:
    return AliasChoices(f"{PREFIX}{name.upper()}", *aliases)


class Settings(BaseSettings):
    """Settings of ``triton-gateway serve``; each can be given as an environment variable.

    Raises pydantic's ``ValidationError`` naming the variable when a value is not usable.
    """

    model_config = SettingsConfigDict(
        extra="forbid", frozen=True, populate_by_name=True, env_prefix=PREFIX, use_attribute_docstrings=True
    )

    host: str = "127.0.0.1"
    """Address to listen on."""
    port: int = Field(8080, ge=0, le=65535, validation_alias=_names("port", "CLEARML_SERVING_PORT"))
    """Port to listen on."""
    grpc_port: int = Field(0, ge=0, le=65535)
    """Port for the Open Inference Protocol over gRPC, on the same address. 0: none."""
    tls: str = ""
    """Folder with the PEM files `tls.crt` (the certificate and its chain) and `tls.key`. If set, the port speaks HTTPS.
    Replaced files are used for new connections.
    """
    tls_client_authority: str = ""
    """PEM file of the authority that signs client certificates. If set, every caller must show one (mutual TLS), probes
    included.
    """
    keys_file: str = ""
    """File of API keys, made by `triton-gateway keys create --file`. If set, every caller needs credentials. A changed
    file is used within two seconds; an unusable one changes nothing and is reported.
    """
    keys_from_registry: bool = False
    """Also accept the keys that `triton-gateway keys … --registry` stores beside the serving Task."""
    jwt_issuer: str = ""
    """Issuer whose tokens (JWT, OpenID Connect) are accepted, exactly as in their claim `iss`. If set, every caller
    needs credentials.
    """
    jwt_audience: str = ""
    """Audience that a token's claim `aud` must name; of several, comma separated, any. Required with an issuer."""
    jwt_keys: str = ""
    """Address or file of the issuer's public keys (JWKS): `jwks_uri` in its `/.well-known/openid-configuration`.
    Required with an issuer.
    """
    jwt_claims: str = ""
    """Which claim holds which right, e.g. `tenant=org,endpoints=gateway.endpoints,operations=scope,class=priority`. A
    right without a claim here has its default: tenant `sub`, all endpoints, infer and metadata, class default. A claim
    that is named here but missing in the token grants nothing.
    """
    replicas: str = Field("1", pattern=r"^([0-9]+|[0-9.-]*[A-Za-z_][A-Za-z0-9_.-]*)$")
    """Number of gateways, this one included: a number, or a host name whose addresses are counted (a headless Service).
    Each worker enforces its share of quotas.
    """
    quota_store: str = ""
    """Address of a Redis or Valkey server through which all gateways [share quotas](security.md#a-shared-store), e.g.
    `redis://quotas:6379/0`, or `rediss://` with TLS. No password in it. Needs the extra `redis`. Empty: each worker
    enforces its share.
    """
    quota_store_password_file: str = ""
    """File with the password of that server. A user's name belongs into the address: `redis://gateway@quotas:6379/0`.
    """
    allow_anonymous: bool = False
    """Accept callers without credentials. Without this setting and without any keys, tokens or client certificates, the
    gateway listens only on loopback addresses.
    """
    keep_alive: Seconds = Field(75.0, gt=0)
    """How long an idle connection is kept open. Set it longer than the load balancer's idle time, which otherwise may
    send a request on a connection that is being closed.
    """
    max_connections: int = Field(0, ge=0)
    """Most open connections of one worker, gRPC included. Beyond that, the one that has waited longest for its client
    is closed; if all have a request in progress, the newest is refused with 503. 0: three quarters of the process's
    file limit (`ulimit -n`), at most 10,000.
    """
    connection_age: Seconds = Field(300.0, ge=0)
    """Close a connection after about this time, by `connection: close` in its next answer, so that callers find new
    replicas. 0: never.
    """
    workers: int = Field(
        1, ge=1, le=256, validation_alias=_names("workers", "WEB_CONCURRENCY", "CLEARML_SERVING_NUM_PROCESS")
    )
    """Number of worker processes that share the port. More than one per core does not help."""
    state_dir: Path = Path(".triton-gateway")
    """Folder for downloaded models, `Preprocess` code and the last working configuration."""
    serving_task_id: str = Field("", validation_alias=_names("serving_task_id", "CLEARML_SERVING_TASK_ID"))
    """ClearML id of the serving Task to follow. Empty: the only running one; if several run, the gateway follows none.
    """
    poll_frequency: PollFrequency = Field(
        5.0, gt=0, validation_alias=_names("poll_frequency", "CLEARML_SERVING_POLL_FREQ")
    )
    """Time between two checks of the serving Task for changes. A bare number counts minutes, as in clearml-serving;
    `5s` counts seconds.
    """
    triton_grpc: str = Field(
        "127.0.0.1:8001", validation_alias=_names("triton_grpc", "CLEARML_DEFAULT_TRITON_GRPC_ADDR")
    )
    """gRPC address of Triton, used if the serving Task names none (`clearml-serving config --triton-grpc-server`).
    Calls are spread over all addresses of a host name (a headless Service). `ipv4:A:8001,B:8001` is a fixed list.
    """
    pools: Pools = ""
    """Addresses of the [pools](kubernetes.md#pools) of Tritons, separated by spaces or semicolons:
    `a10=dns:///triton-a10:8001 h100=10.0.0.1:8001,10.0.0.2:8001`. The address of `default` is
    `TRITON_GATEWAY_TRITON_GRPC`, unless given here. `*` stands for every other pool.
    """
    cold_start_timeout: Seconds = Field(0.0, ge=0)
    """How long a request waits for a pool in which no Triton answers (e.g. one scaled to zero), or for a model that was
    [unloaded](kubernetes.md#unloading-idle-models); at most nine tenths of its own time limit. Then 503 with
    `Retry-After`. 0: no wait for a pool, 30 s for a model.
    """
    triton_tls: str = ""
    """Folder with PEM files for [TLS to every Triton](triton.md#tls): `ca.crt` (without it the system's authorities are
    trusted), and, if Triton asks for a certificate, `tls.crt` and `tls.key`. A `grpcs://` address turns on TLS as well.
    Model sync reads this setting too.
    """
    triton_tls_name: str = ""
    """Name that Triton's certificate must be issued for. Empty: the host of Triton's address."""
    triton_http: str = Field("auto", pattern="^(auto|off|[0-9]{1,5})$")
    """Triton's HTTP port, which costs a fraction of gRPC's CPU time: a port, `auto` (8000 if gRPC uses 8001) or `off`.
    gRPC is used for everything else, and whenever HTTP does not answer. Only over gRPC does Triton stop work whose
    caller has left.
    """
    serve_path: str = Field("serve", validation_alias=_names("serve_path", "CLEARML_DEFAULT_SERVE_SUFFIX"))
    """First part of the path of the inference routes."""
    serving_base_url: str = Field("", validation_alias=_names("serving_base_url", "CLEARML_DEFAULT_BASE_SERVE_URL"))
    """Base address that a hook's `send_request` uses for endpoints that this gateway does not serve, e.g.
    `http://gateway:8080/serve`.
    """
    files_rewrite: str = ""
    """Rewrite file addresses that this process cannot reach as uploaded: `from=to` prefixes, comma separated, e.g.
    `http://localhost:8081=http://fileserver:8081`.
    """
    request_timeout: Seconds = Field(60.0, gt=0, validation_alias=_names("request_timeout", "GUNICORN_SERVING_TIMEOUT"))
    """Time limit of one request. A caller can lower it by `x-request-timeout-ms`."""
    routing_key: str = Field("x-routing-key", pattern=r"^[A-Za-z0-9!#$%&'*+.^_`|~-]+$")
    """Request header with the routing key: requests with the same key go to the same version of a canary."""
    max_body_bytes: Bytes = Field(0, ge=0)
    """Largest request body, before and after unpacking gzip, e.g. `4M`. 0: [by address](http-api.md#connections). JSON
    is parsed at one go, while other requests wait: 10 ms per MiB and more.
    """
    max_in_flight: int = Field(1024, gt=0)
    """Most requests in progress in one worker. More are refused with 429 and Retry-After."""
    work_limit: Literal["auto", "always", "off"] = "auto"
    """When the work of one endpoint version is limited to two full calls ([overload](security.md#work-limit)): `auto`:
    under overload; `always`; `off`: never.
    """
    max_bytes_in_flight: Bytes = Field(128 << 20, gt=0)
    """Most bytes of request bodies that one worker holds at a time, e.g. `128M`. More are refused with 429; a single
    request is always admitted.
    """
    max_batch_rows: int = Field(64, gt=0)
    """Most rows in one call to Triton. The model's `max_batch_size` is also a limit."""
    max_batch_tokens: int = Field(16384, gt=0)
    """Most padded tokens (longest × rows) in one call to Triton."""
    max_batches_in_flight: int = Field(2, gt=0)
    """Most calls in flight per endpoint version to each Triton. Set one more than Triton works on at a time (model
    instances, GPUs), so that none of them is idle.
    """
    word_cache_words: int = Field(200_000, ge=0)
    """Most words in the cache of each tokenizer, which models with the same tokenizer.json share (results are exact;
    see docs/tasks.md#words-that-are-remembered). 0: no cache.
    """
    max_hook_processes: int = Field(32, ge=1, le=4096)
    """Most hook processes of one worker, over all endpoints. At the limit, a new process replaces the one that has been
    idle longest, or requests wait.
    """
    metric_log_frequency: float = Field(
        1.0, ge=0, le=1, validation_alias=_names("metric_log_frequency", "CLEARML_DEFAULT_METRIC_LOG_FREQ")
    )
    """Share of the requests whose declared variables are counted. `metrics add --log-freq` and the serving Task
    override it.
    """
    payload_log: str = ""
    """Which requests and answers to record ([payload log](security.md#payload-log)): endpoints, each with the share of
    its answered requests, e.g. `sentiment=0.1 toxic/2=1 *=0.01`. The first match counts. Empty: none.
    """
    payload_log_bytes: Bytes = Field(1 << 30, ge=1 << 20)
    """Largest total size of the payload log's folder, e.g. `1G`. Above it, the oldest files are deleted."""
    payload_log_keep: Seconds = Field(168 * 3600.0, ge=60)
    """Age at which a file of the payload log is deleted."""
    payload_log_drop: str = ""
    """Fields to leave out of the payload log by name, comma separated: of requests and answers at any depth, and of
    records themselves, such as `request`.
    """
    ready_timeout: Seconds = Field(600.0, gt=0)
    """Longest time for a new version to become ready in Triton, and for its code to load. Then it is reported as
    failed.
    """
    drain_delay: Seconds = Field(1.0, ge=0)
    """How long a process keeps serving after SIGTERM before it stops listening; meanwhile it is not ready, and answers
    have `connection: close`. SIGINT stops at once.
    """
    drain_timeout: Seconds = Field(30.0, gt=0)
    """How long a stopping process waits for requests in flight."""
    log_format: str = Field("auto", pattern="^(auto|json|text)$")
    """Format of the log: `json` (one object per line), `text`, or `auto` (text on a terminal, else json)."""
    access_log: bool = False
    """Log one line per request. Failures are always logged; refusals because of overload are only counted
    (`gateway_refused_requests_total`).
    """

    @property
    def knows_callers(self) -> bool:
        """Whether callers are identified in any way."""
        return bool(self.keys_file or self.keys_from_registry or self.jwt_issuer or self.tls_client_authority)

    @property
    def answers_strangers(self) -> bool:
        """Whether the gateway listens on a reachable address without identifying callers or saying that it need not."""
        return not (self.knows_callers or self.allow_anonymous or is_loopback(self.host))

    @property
    def tls_files(self) -> tuple[str, str, str]:
        """With TLS, the files of the certificate, of its key and of the callers' authority, empty if there is none."""
        return f"{self.tls}/tls.crt", f"{self.tls}/tls.key", self.tls_client_authority

    def files_rewrites(self) -> dict[str, str]:
        """Return ``files_rewrite`` as a mapping of prefixes."""
        pairs = (pair.split("=", 1) for pair in self.files_rewrite.split(",") if "=" in pair)
        return {source.strip(): target.strip() for source, target in pairs}


def variables_of(field: str) -> tuple[str, ...]:
    """Return the environment variables of a setting, ours first."""
    alias = Settings.model_fields[field].validation_alias
    return tuple(map(str, alias.choices)) if isinstance(alias, AliasChoices) else (f"{PREFIX}{field.upper()}",)


def trace_protocol(environ: Mapping[str, str]) -> str:
    """Return the protocol of spans, ``grpc`` or ``http/protobuf``; empty if no ``OTEL_*`` endpoint is set.

    Raises ``ValueError`` for a protocol without an exporter.
    """
    endpoint = environ.get("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT") or environ.get("OTEL_EXPORTER_OTLP_ENDPOINT", "")
    is_off = environ.get("OTEL_SDK_DISABLED", "").lower() == "true" or environ.get("OTEL_TRACES_EXPORTER") == "none"
    if not endpoint or is_off:
        return ""
    chosen = environ.get("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL") or environ.get("OTEL_EXPORTER_OTLP_PROTOCOL")
    # The standard's default is http/protobuf, but on port 4317, which the same standard assigns to gRPC, use gRPC.
    protocol = chosen or ("grpc" if endpoint.rstrip("/").endswith(":4317") else "http/protobuf")
    if protocol not in ("grpc", "http/protobuf"):
        raise ValueError(f"OTEL_EXPORTER_OTLP_PROTOCOL must be grpc or http/protobuf, not {protocol!r}")
    return protocol


def grpc_options(environ: Mapping[str, str]) -> tuple[tuple[str, Any], ...]:
    """Return ``CLEARML_GRPC_*`` variables as gRPC channel options, numbers converted, as clearml-serving does."""
    options = []
    for key, text in sorted(environ.items()):
        if key.startswith("CLEARML_GRPC_"):
            value: Any = text
            for convert in (int, float):
                try:
                    value = convert(text)
                    break
                except ValueError:
                    continue
            options.append((f"grpc.{key.removeprefix('CLEARML_GRPC_').lower()}", value))
    return tuple(options)

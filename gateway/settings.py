"""Every setting of a gateway process, read once from the environment; ``os.environ`` is read nowhere else.

Our names start with ``TRITON_GATEWAY_``; variables of clearml-serving keep their names and meaning and are accepted as
aliases. Composition roots (``app``, ``__main__``, ``deploy``) pass values on; nothing below them sees this class.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from ipaddress import ip_address
from pathlib import Path
from typing import Annotated, Any, ClassVar

from pydantic import AliasChoices, BeforeValidator, Field
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource, SettingsConfigDict

from gateway import pools

_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0}
_DURATION = re.compile(r"\s*([0-9]*\.?[0-9]+)\s*(ms|s|min|m|h)?\s*$")


def parse_duration(value: object, *, bare_unit: str = "s") -> float:
    """Parse ``"5s"``, ``"500ms"``, ``"2m"``, ``"1h"`` or a bare number (in ``bare_unit``) to seconds.

    Raises ``ValueError`` for anything else and for negative values.
    """
    match = _DURATION.match(str(value))
    if not match:
        raise ValueError(f"{value!r} is not a duration; write 5s, 500ms, 2m or 1h")
    return float(match[1]) * _UNITS[match[2] or bare_unit]


def unload_after(option: str) -> float:
    """Return after how many seconds without a request a model is unloaded, as ``gateway.unload_after`` says; 0: never.

    Raises ``ValueError`` for what is no duration, and for less than ten seconds.
    """
    seconds = parse_duration(option) if option else 0.0
    if 0 < seconds < LEAST_UNLOAD_S:
        raise ValueError(f"{option} is too short: a model that is being asked for takes seconds to come back")
    return seconds


LEAST_UNLOAD_S = 10.0
_SIZES = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}
_SIZE = re.compile(r"\s*([0-9]*\.?[0-9]+)\s*([kmgt]?)(i?b)?\s*$", re.IGNORECASE)


def parse_size(value: object) -> int:
    """Parse ``"512M"``, ``"1.5GiB"`` or a bare number of bytes to bytes; letters count in 1024s.

    Raises ``ValueError`` for anything else.
    """
    match = _SIZE.match(str(value))
    if not match:
        raise ValueError(f"{value!r} is not a size; write 512M or 2G")
    return int(float(match[1]) * _SIZES[match[2].lower()])


def parse_share(value: object) -> float:
    """Parse ``"99.9%"``, ``"99.9"`` or ``"0.999"`` to a share, ``"off"`` to 0.

    Raises ``ValueError`` for anything else, for less than half and for all: what promises everything is always broken.
    """
    text = str(value).strip()
    if text in ("off", "0", "0.0"):
        return 0.0
    try:
        number = float(text.removesuffix("%"))
    except ValueError:
        raise ValueError(f"{value!r} is not a share; write 99.9% or off") from None
    share = round(number / 100 if text.endswith("%") or number > 1 else number, 9)
    if not 0.5 <= share < 1:
        raise ValueError(f"{value!r} cannot be promised: write a share from 50% up to below 100%, or off")
    return share


def _seconds(value: object) -> float:
    return parse_duration(value)


def _clearml_poll(value: object) -> float:
    # What people write for CLEARML_SERVING_POLL_FREQ counts minutes, as in clearml-serving, unless it has a unit.
    # A number, such as the default (which is validated too), is seconds like everywhere.
    return parse_duration(value, bare_unit="min" if isinstance(value, str) else "s")


SUPERVISOR = "TRITON_GATEWAY_SUPERVISOR_PID"
"""No setting: told to workers, the process that shares the port out to them."""
NUMBERS_FOLDER = "TRITON_GATEWAY_NUMBERS_FOLDER"
"""No setting: told to workers, the folder in which they share what they count."""


def _work_limit(value: object) -> str:
    rule = str(value).strip()
    if rule not in ("auto", "always", "off") and not parse_duration(rule):
        raise ValueError("a limit of no work lets nobody in: write auto, always, off or a time such as 200ms")
    return rule


def _pools(value: object) -> str:
    pools.addresses(str(value))
    return str(value)


WorkRule = Annotated[str, BeforeValidator(_work_limit)]
Pools = Annotated[str, BeforeValidator(_pools)]
Seconds = Annotated[float, BeforeValidator(_seconds)]
Share = Annotated[float, BeforeValidator(parse_share)]
Bytes = Annotated[int, BeforeValidator(parse_size)]
PollFrequency = Annotated[float, BeforeValidator(_clearml_poll)]


def _names(name: str, *aliases: str) -> AliasChoices:
    return AliasChoices(f"TRITON_GATEWAY_{name.upper()}", *aliases, name)


def _is_loopback(host: str) -> bool:
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


class Settings(BaseSettings):
    """Settings of ``triton-gateway serve``; each can be given as an environment variable.

    Raises pydantic's ``ValidationError`` naming the variable when a value is not usable.
    """

    model_config = SettingsConfigDict(extra="ignore", frozen=True, populate_by_name=True)

    plain_numbers: ClassVar[frozenset[str]] = frozenset(
        {"metric_log_frequency", "drift_alarm_days", "objective_availability", "objective_latency_share"}
    )
    """Fields whose numbers are no durations."""

    host: str = Field("127.0.0.1", validation_alias=_names("host"), description="Address to listen on.")
    port: int = Field(
        8080, ge=0, le=65535, validation_alias=_names("port", "CLEARML_SERVING_PORT"), description="Port to listen on."
    )
    grpc_port: int = Field(
        0, ge=0, le=65535, validation_alias=_names("grpc_port"),
        description="Port of the Open Inference Protocol over gRPC (Triton's own protocol), on the same address; "
        "0 for none. All workers share it.",
    )  # fmt: skip
    admin_port: int = Field(
        0, ge=0, le=65535, validation_alias=_names("admin_port"),
        description="Port of its own for what tells of the whole gateway: `/metrics`, `/v1/status`, the page, `/docs`, "
        "lineage. They are then answered there only, to whoever reaches it, without a key. 0: on the port of "
        "inference, to those with a right to them.",
    )  # fmt: skip
    admin_host: str = Field(
        "127.0.0.1", validation_alias=_names("admin_host"),
        description="Address of that port; one that only operators and Prometheus reach.",
    )  # fmt: skip
    tls_certificate: str = Field(
        "", validation_alias=_names("tls_certificate"),
        description="PEM file of a certificate with its chain: the port then speaks HTTPS. Files that are replaced are "
        "read again within ten seconds, for new connections.",
    )  # fmt: skip
    tls_key: str = Field("", validation_alias=_names("tls_key"), description="PEM file of its private key.")
    tls_client_authority: str = Field(
        "", validation_alias=_names("tls_client_authority"),
        description="PEM file of the authority whose certificates callers must show (mutual TLS); probes included.",
    )  # fmt: skip
    keys_file: str = Field(
        "", validation_alias=_names("keys_file"),
        description="File of the keys of those who may ask (`triton-gateway keys create --file`), for instance a "
        "mounted Secret: from then on callers must be known. A file that is replaced is read again within two "
        "seconds; one that cannot be used leaves the keys as they were, and says so.",
    )  # fmt: skip
    keys_from_registry: bool = Field(
        False, validation_alias=_names("keys_from_registry"),
        description="Whether keys are also those whose hashes `triton-gateway keys … --registry` keeps beside the "
        "serving Task; they reach every gateway with its next look there. Needs `TRITON_GATEWAY_PEPPER_FILE`.",
    )  # fmt: skip
    pepper_file: str = Field(
        "", validation_alias=_names("pepper_file"),
        description="File of the secret that keys were hashed with; empty: beside the file of keys, its name and "
        "`.pepper`.",
    )  # fmt: skip
    jwt_issuer: str = Field(
        "", validation_alias=_names("jwt_issuer"),
        description="Whose tokens (JWT, OpenID Connect) are believed, exactly as their `iss` says: from then on "
        "callers must be known.",
    )  # fmt: skip
    jwt_audience: str = Field(
        "", validation_alias=_names("jwt_audience"),
        description="What a token's `aud` must name, comma separated if any of several will do; needed with an issuer.",
    )  # fmt: skip
    jwt_keys: str = Field(
        "", validation_alias=_names("jwt_keys"),
        description="Address or file of the issuer's public keys (a JWKS); empty: found through the issuer's "
        "`/.well-known/openid-configuration`. An address is asked again every five minutes, and for a key that is not "
        "known at most every ten seconds.",
    )  # fmt: skip
    jwt_algorithms: str = Field(
        "RS256,PS256,ES256,EdDSA", validation_alias=_names("jwt_algorithms"),
        description="Signatures that are believed, comma separated; those with a shared secret are none.",
    )  # fmt: skip
    jwt_claims: str = Field(
        "", validation_alias=_names("jwt_claims"),
        description="Which claim tells what, e.g. `tenant=org,endpoints=gateway.endpoints,operations=scope,"
        "class=priority`. Without a claim the tenant is `sub`, endpoints are all, operations are infer and metadata, "
        "the class is default; what a named claim does not tell is not granted.",
    )  # fmt: skip
    replicas: str = Field(
        "1", min_length=1, validation_alias=_names("replicas"),
        description="How many gateways share the tenants' quotas: a number, or a host name whose addresses are counted "
        "every five seconds (a headless Service). Each worker lets its share through. A number also tells how many "
        "share Triton's calls when more comes than can be answered.",
    )  # fmt: skip
    allow_anonymous: bool = Field(
        False, validation_alias=_names("allow_anonymous"),
        description="Whether callers without credentials are let in: a proxy in front of this gateway knows who they "
        "are. Without it, and without keys, a gateway listens on loopback addresses only.",
    )  # fmt: skip
    keep_alive: Seconds = Field(
        75.0, gt=0, validation_alias=_names("keep_alive"),
        description="How long an idle connection is kept. Longer than a load balancer in front keeps its own, or it "
        "sends a request on a connection that is just being closed.",
    )  # fmt: skip
    head_timeout: Seconds = Field(
        20.0, gt=0, validation_alias=_names("head_timeout"),
        description="How long a new connection may take to send its first request's head, and any later head from its "
        "first byte to its end; then 408 (if something came) and the end of the connection. A body has "
        "`TRITON_GATEWAY_REQUEST_TIMEOUT`.",
    )  # fmt: skip
    max_head_bytes: Bytes = Field(
        64 << 10, ge=1024, validation_alias=_names("max_head_bytes"),
        description="Largest head of a request (address and headers), e.g. `64K`; more is answered 431.",
    )  # fmt: skip
    max_headers: int = Field(
        100, ge=10, validation_alias=_names("max_headers"),
        description="Headers a request may have; more are answered 431.",
    )  # fmt: skip
    max_connections: int = Field(
        0, ge=0, validation_alias=_names("max_connections"),
        description="Connections one worker keeps open. When there are more, the one that has waited longest for its "
        "client is closed; if every one is being answered, the newest is told 503. 0: three quarters of the files the "
        "process may open (`ulimit -n`), at most 10,000; shared with the gRPC port, which closes the newest.",
    )  # fmt: skip
    fast_path: bool = Field(
        True, validation_alias=_names("fast_path"),
        description="Whether common requests take the short way through the HTTP server; off, every request takes the "
        "ordinary way, with the same answers.",
    )  # fmt: skip
    connection_age: Seconds = Field(
        300.0, ge=0, validation_alias=_names("connection_age"),
        description="After about this time a connection's next answer says `connection: close`, so that callers that "
        "keep connections for ever find new replicas; 0: never.",
    )  # fmt: skip
    workers: int = Field(
        1, ge=1, le=256, validation_alias=_names("workers", "WEB_CONCURRENCY", "CLEARML_SERVING_NUM_PROCESS"),
        description="Worker processes that share the port; one per core is the useful maximum.",
    )  # fmt: skip
    state_dir: Path = Field(
        Path(".triton-gateway"), validation_alias=_names("state_dir"),
        description="Folder for downloaded models, preprocess code and the last configuration that worked.",
    )  # fmt: skip
    cache_bytes: Bytes = Field(
        20 << 30, ge=0, validation_alias=_names("cache_bytes"),
        description="Size of the downloaded models and code, e.g. `20G`, above which those that nobody needs any more "
        "are deleted, the longest unused first; 0: never. At most 80 % of the volume that `state_dir` lies on. What is "
        "served, or would be after a restart, always stays.",
    )  # fmt: skip
    unpacked_bytes: Bytes = Field(
        64 << 30, ge=1, validation_alias=_names("unpacked_bytes"),
        description="Most that one archive of a model or of code may hold when it is unpacked, e.g. `64G`. Whatever is "
        "set here, no archive may grow to more than 100 times its size (above 256 MiB) or to more than the disk holds.",
    )  # fmt: skip
    serving_task_id: str = Field(
        "", validation_alias=_names("serving_task_id", "CLEARML_SERVING_TASK_ID"),
        description="ClearML id of the serving Task to follow; empty: the only one that runs, of several none.",
    )  # fmt: skip
    poll_frequency: PollFrequency = Field(
        5.0, gt=0, validation_alias=_names("poll_frequency", "CLEARML_SERVING_POLL_FREQ"),
        description="How often the serving Task is looked at. A bare number counts minutes, as in clearml-serving; "
        "`5s` counts seconds. One look is one small call.",
    )  # fmt: skip
    triton_grpc: str = Field(
        "127.0.0.1:8001", validation_alias=_names("triton_grpc", "CLEARML_DEFAULT_TRITON_GRPC_ADDR"),
        description="gRPC address of Triton, used when the serving Task names none (`clearml-serving config "
        "--triton-grpc-server`). A name is looked up every two seconds and calls are spread over every address it has "
        "(a headless Service); `ipv4:A:8001,B:8001` is a fixed list.",
    )  # fmt: skip
    pools: Pools = Field(
        "", validation_alias=_names("pools"), description="Addresses of the pools of Tritons that endpoints can name "
        "(`--aux-config gateway.pool=a10`, or a model's tag `pool:a10`): `a10=dns:///triton-a10:8001 "
        "h100=10.0.0.1:8001,10.0.0.2:8001`, spaces or semicolons between. `default` is the pool of what names none, "
        "and `TRITON_GATEWAY_TRITON_GRPC` its address if it is not here; `*` is every other pool.",
    )  # fmt: skip
    cold_start_timeout: Seconds = Field(
        0.0, ge=0, validation_alias=_names("cold_start_timeout"),
        description="How long a request waits for a pool none of whose Tritons answers, for instance one that was "
        "scaled to zero, and for a model that was unloaded while nobody asked (`--aux-config "
        "gateway.unload_after=1800`); then it gets 503 with `Retry-After`. Nine tenths of the request's own time at "
        "most. 0: not at all for a pool, 30 s for a model.",
    )  # fmt: skip
    triton_tls_authority: str = Field(
        "", validation_alias=_names("triton_tls_authority"),
        description="PEM file of the authority that signed Triton's certificate. Any `TRITON_TLS` setting, or a "
        "`grpcs://` address, switches TLS on for every Triton; without this one the system's authorities are trusted.",
    )  # fmt: skip
    triton_tls_certificate: str = Field(
        "", validation_alias=_names("triton_tls_certificate"),
        description="PEM file of the certificate (with its chain) this gateway shows to Triton, for mutual TLS.",
    )  # fmt: skip
    triton_tls_key: str = Field(
        "", validation_alias=_names("triton_tls_key"), description="PEM file of its private key."
    )
    triton_tls_name: str = Field(
        "", validation_alias=_names("triton_tls_name"),
        description="Name that Triton's certificate must be for; empty: the host of its address.",
    )  # fmt: skip
    triton_http: str = Field(
        "auto", validation_alias=_names("triton_http"),
        description="Triton's HTTP, over which models are called if it answers: a fraction of gRPC's cost. A port "
        "(of the same hosts), addresses (`host:8000`, comma separated; for the default Triton only), `auto` (port 8000 "
        "where gRPC has 8001) or `off`. Everything else stays gRPC, which also takes over when HTTP does not answer, "
        "and for models whose callers keep leaving before the answer: HTTP does not tell Triton to stop.",
    )  # fmt: skip
    triton_key_file: str = Field(
        "", validation_alias=_names("triton_key_file"),
        description="File with the key of Triton's control APIs, to ask why a model is not loaded; nothing else needs "
        "it. Empty: `triton/key` in the state folder, if that exists.",
    )  # fmt: skip
    triton_grpc_compression: bool = Field(
        False, validation_alias=_names("triton_grpc_compression", "CLEARML_DEFAULT_TRITON_GRPC_COMPRESSION"),
        description="gzip the calls to Triton.",
    )  # fmt: skip
    serve_path: str = Field(
        "serve", validation_alias=_names("serve_path", "CLEARML_DEFAULT_SERVE_SUFFIX"),
        description="First path part of the inference routes.",
    )  # fmt: skip
    serving_base_url: str = Field(
        "", validation_alias=_names("serving_base_url", "CLEARML_DEFAULT_BASE_SERVE_URL"),
        description="Where a hook's `send_request` goes for endpoints this gateway does not serve, "
        "e.g. `http://gateway:8080/serve`.",
    )  # fmt: skip
    files_rewrite: str = Field(
        "", validation_alias=_names("files_rewrite"),
        description="`from=to` pairs, comma separated, for file addresses that uploaders wrote under another name, "
        "e.g. `http://localhost:8081=http://fileserver:8081`.",
    )  # fmt: skip
    request_timeout: Seconds = Field(
        60.0, gt=0, validation_alias=_names("request_timeout", "GUNICORN_SERVING_TIMEOUT"),
        description="Time one request may take; callers lower it with the `x-request-timeout-ms` header.",
    )  # fmt: skip
    routing_key_header: str = Field(
        "x-routing-key", min_length=1, validation_alias=_names("routing_key_header"),
        description="Request header whose value keeps a caller on one side of a canary.",
    )  # fmt: skip
    routing_key_field: str = Field(
        "", validation_alias=_names("routing_key_field"),
        description="Field of a JSON body that does so if the header is missing, e.g. `user_id` or `user.id`.",
    )  # fmt: skip
    tei_endpoints: str = Field(
        "", validation_alias=_names("tei_endpoints"),
        description="Endpoints that Text Embeddings Inference's routes ask where the address names none (`/embed`, "
        "`/rerank`, …, and a rerank request without `model`), comma separated: each route asks the first that does its "
        "task, e.g. `minilm,reranker`. Empty: the only thing that is served.",
    )  # fmt: skip
    allow_pins: bool = Field(
        False, validation_alias=_names("allow_pins"),
        description="Whether `x-route-to: endpoint/version` sends a request to exactly that version, past its canary.",
    )  # fmt: skip
    max_body_bytes: int = Field(
        16 << 20, gt=0, validation_alias=_names("max_body_bytes"),
        description="Largest request body, also after unpacking gzip.",
    )  # fmt: skip
    max_in_flight: int = Field(
        1024, gt=0, validation_alias=_names("max_in_flight"),
        description="Requests one worker holds at a time; more are answered 429 with Retry-After.",
    )  # fmt: skip
    work_limit: WorkRule = Field(
        "auto", validation_alias=_names("work_limit"),
        description="How much work an endpoint version may have in hand, waiting and in calls to Triton, by what calls "
        "have cost. `auto`: as much as keeps its model busy, found out from what is observed, while more comes than is "
        "answered, or requests are refused for what it has in hand, and for five seconds after; `always`: from the "
        "start; a time such as `200ms`: what one Triton does in that time; `off`: no limit but `max_in_flight`.",
    )  # fmt: skip
    max_bytes_in_flight: Bytes = Field(
        128 << 20, gt=0, validation_alias=_names("max_bytes_in_flight"),
        description="Bytes of request bodies, e.g. `128M`, that one worker holds at a time; what would exceed them is "
        "answered 429 with Retry-After. A single request is always let in, up to the largest body.",
    )  # fmt: skip
    max_batch_rows: int = Field(
        64,
        gt=0,
        validation_alias=_names("max_batch_rows"),
        description="Rows in one call to Triton at most; never more than the model's `max_batch_size`.",
    )
    max_batch_tokens: int = Field(
        16384, gt=0, validation_alias=_names("max_batch_tokens"),
        description="Padded tokens (longest × rows) in one call to Triton at most.",
    )  # fmt: skip
    max_batches_in_flight: int = Field(
        2, gt=0, validation_alias=_names("max_batches_in_flight"),
        description="Calls per endpoint version to each Triton at a time; requests that arrive meanwhile share the "
        "next. One more than a Triton works on at a time (instances of the model, GPUs), so that none of them waits.",
    )  # fmt: skip
    word_cache_words: int = Field(
        200_000, ge=0, validation_alias=_names("word_cache_words"),
        description="Words each text endpoint's tokenizer may remember (exact; see docs/tokenization.md); 0 for none.",
    )  # fmt: skip
    word_cache_total: int = Field(
        2_000_000, ge=0, validation_alias=_names("word_cache_total"),
        description="Words that all tokenizers of one worker may remember together: above it those that are not asked "
        "for forget first; 0: no bound.",
    )  # fmt: skip
    response_cache_entries: int = Field(
        0, ge=0, validation_alias=_names("response_cache_entries"),
        description="Answers each text endpoint remembers for bodies seen before; 0 for none. One endpoint: "
        "`--aux-config gateway.response_cache=1000`.",
    )  # fmt: skip
    response_cache_bytes: Bytes = Field(
        64 << 20, gt=0, validation_alias=_names("response_cache_bytes"),
        description="Most memory, e.g. `64M`, that the remembered answers of one text endpoint and the bodies they "
        "belong to may take in one worker; the longest unused are forgotten first.",
    )  # fmt: skip
    hook_threads: int = Field(
        8, gt=0, validation_alias=_names("hook_threads"),
        description="Threads per endpoint for `Preprocess` code that is not async and runs in the worker (isolation "
        "`thread`).",
    )  # fmt: skip
    hook_isolation: str = Field(
        "auto", pattern="^(auto|process|thread)$", validation_alias=_names("hook_isolation"),
        description="Where `Preprocess` code runs: `process` (its own) or `thread` (of the worker). `auto`: "
        "hooks of engine triton in threads, all others in processes. One endpoint: `gateway.hook_isolation`.",
    )  # fmt: skip
    hook_processes: int = Field(
        4, ge=1, le=256, validation_alias=_names("hook_processes"),
        description="Hook processes per endpoint version and worker at most; they start as requests wait and end when "
        "idle. One endpoint: `gateway.hook_processes`. See also `TRITON_GATEWAY_MAX_HOOK_PROCESSES`.",
    )  # fmt: skip
    hook_min_processes: int = Field(
        0, ge=0, le=256, validation_alias=_names("hook_min_processes"),
        description="Hook processes per endpoint version and worker that stay although nobody asks, so that no request "
        "waits for one to start and to load its model. One endpoint: `gateway.hook_min_processes`.",
    )  # fmt: skip
    max_hook_processes: int = Field(
        32, ge=1, le=4096, validation_alias=_names("max_hook_processes"),
        description="Hook processes of one worker at most, all endpoints together. At the bound, one that starts takes "
        "the place of the one that has idled longest; if none idles, requests wait for their turn.",
    )  # fmt: skip
    hook_idle_timeout: Seconds = Field(
        900.0, ge=0, validation_alias=_names("hook_idle_timeout"),
        description="After this time without a request the last hook process of an endpoint version ends; the next "
        "request starts one. Further processes end after a minute. 0: never.",
    )  # fmt: skip
    hook_memory: Bytes = Field(
        0, ge=0, validation_alias=_names("hook_memory"),
        description="Memory one hook process may hold, e.g. `2G`; more ends it. 0: half of what the machine or "
        "container has. One endpoint: `gateway.hook_memory`.",
    )  # fmt: skip
    hook_timeout: Seconds = Field(
        0.0, ge=0, validation_alias=_names("hook_timeout"),
        description="Time one call of `Preprocess` code may take; 0: as long as its request may. One endpoint: "
        "`gateway.hook_timeout`.",
    )  # fmt: skip
    hook_packages: str = Field(
        "refuse", pattern="^(refuse|install)$", validation_alias=_names("hook_packages"),
        description="When a hook's `requirements.txt` names packages that are not here: `refuse` the endpoint, naming "
        "them, or `install` them for its hook processes (runs pip).",
    )  # fmt: skip
    metric_log_frequency: float = Field(
        1.0, ge=0, le=1, validation_alias=_names("metric_log_frequency", "CLEARML_DEFAULT_METRIC_LOG_FREQ"),
        description="Share of the requests whose declared variables are counted (scaled, so that rates stay right), "
        "if neither `metrics add --log-freq` nor the serving Task says it.",
    )  # fmt: skip
    metrics_detail: str = Field(
        "brief", pattern="^(brief|full)$", validation_alias=_names("metrics_detail"),
        description="What `/metrics` shows: `brief`, 30 series per version, or `full`, about 250: all buckets, "
        "all stages, batches' tokens, the word cache and built-in variables. `/metrics?detail=full` shows all at any "
        "setting ([levels of detail](metrics.md#levels-of-detail)).",
    )  # fmt: skip
    reference_dir: str = Field(
        "", validation_alias=_names("reference_dir"),
        description="Folder of reference distributions (`ENDPOINT.json`, `ENDPOINT/VERSION.json`) that go before those "
        "in model folders; empty: `references` in the state folder.",
    )  # fmt: skip
    drift_alarm_days: float = Field(
        30.0, gt=0, validation_alias=_names("drift_alarm_days"),
        description="How seldom chance alone may alarm drift, per endpoint and over all its variables together: "
        "once in so many days at most. More days: fewer false alarms, and more texts until a change is found.",
    )  # fmt: skip
    drift_words: bool = Field(
        True, validation_alias=_names("drift_words"),
        description="Whether the words of texts are counted for drift: the frequent ones are kept in memory and in "
        "captured references, and those that rise or fall are shown to who may read `/v1/status` "
        "([drift](drift.md#words)).",
    )  # fmt: skip
    objective_availability: Share = Field(
        0.999, validation_alias=_names("objective_availability"),
        description="Share of an endpoint's requests that must be answered, e.g. `99.9%`, if the endpoint does not say "
        "it ([objectives](objectives.md)); `off`: none, and no alert. What fails by a caller's own doing does not "
        "count.",
    )  # fmt: skip
    objective_latency: Seconds = Field(
        0.0, ge=0, validation_alias=_names("objective_latency"),
        description="Time within which an endpoint's answers must come, e.g. `300ms`, if the endpoint does not say it; "
        "0: none, and no alert.",
    )  # fmt: skip
    objective_latency_share: Share = Field(
        0.99, gt=0, validation_alias=_names("objective_latency_share"),
        description="Share of the answers that must come within that time, if the endpoint does not say it.",
    )  # fmt: skip
    payload_log: str = Field(
        "", validation_alias=_names("payload_log"),
        description="Which requests and answers are kept ([payload log](payload-log.md)): endpoints and the share of "
        "their answered requests, e.g. `sentiment=0.1 toxic/2=1 *=0.01`; the first that fits counts. Empty: none. "
        "What people send is then written down: tell them.",
    )  # fmt: skip
    payload_log_to: str = Field(
        "", validation_alias=_names("payload_log_to"),
        description="Where they go: a folder, for JSON lines, or an `http://` or `https://` address, for CloudEvents. "
        "Empty: `payloads` in the state folder.",
    )  # fmt: skip
    payload_log_bytes: Bytes = Field(
        1 << 30, ge=1 << 20, validation_alias=_names("payload_log_bytes"),
        description="Most that all files of that folder may hold, e.g. `1G`; above it the oldest are deleted.",
    )  # fmt: skip
    payload_log_keep: Seconds = Field(
        168 * 3600.0, ge=60, validation_alias=_names("payload_log_keep"),
        description="After this time a file of that folder is deleted.",
    )  # fmt: skip
    payload_log_redact: str = Field(
        "", validation_alias=_names("payload_log_redact"),
        description="What is replaced in texts of requests and answers before they are written: rules, separated by "
        "white space, of `url email iban card ip phone number` and patterns of your own between slashes, e.g. "
        r"`email card /ACC-\d+/` ([RE2's syntax](https://github.com/google/re2/wiki/Syntax)).",
    )  # fmt: skip
    payload_log_drop: str = Field(
        "", validation_alias=_names("payload_log_drop"),
        description="Fields that are left out, comma separated: of requests and answers at any depth, and `request`, "
        "`answer`, `caller`, `tenant`, `request_id`, `trace_id` themselves.",
    )  # fmt: skip
    payload_log_batch: int = Field(
        100, ge=1, le=10_000, validation_alias=_names("payload_log_batch"),
        description="CloudEvents in one request at most; 1 for receivers that take no batches, such as Knative's "
        "brokers.",
    )  # fmt: skip
    pinned_endpoints: str = Field(
        "", validation_alias=_names("pinned_endpoints"),
        description="Comma separated paths (`name`, `name/version`) without which this process is not ready: "
        "a load balancer then sends it nothing until it can serve all of them, however long that takes. For the start "
        "only: once it has been ready, one that is lost is reported as degraded.",
    )  # fmt: skip
    startup_wait: Seconds = Field(
        300.0, ge=0, validation_alias=_names("startup_wait"),
        description="How long a process that starts is not ready for want of endpoints that were served before: those "
        "of the last configuration that worked here, without one those of the serving Task. What Triton or model sync "
        "has refused, and what is new, is not waited for. Then it is ready with what it can serve.",
    )  # fmt: skip
    ready_timeout: Seconds = Field(
        600.0, gt=0, validation_alias=_names("ready_timeout"),
        description="How long a new version may take to become ready in Triton, and its code to load, before it is "
        "reported as failed.",
    )  # fmt: skip
    drain_delay: Seconds = Field(
        1.0, ge=0, validation_alias=_names("drain_delay"),
        description="How long a process that got SIGTERM goes on serving, not ready any more and with "
        "`connection: close` on every answer, before it stops listening. SIGINT stops at once.",
    )  # fmt: skip
    drain_timeout: Seconds = Field(
        30.0, gt=0, validation_alias=_names("drain_timeout"),
        description="How long a stopping process waits for requests in flight.",
    )  # fmt: skip
    log_format: str = Field(
        "auto", pattern="^(auto|json|text)$", validation_alias=_names("log_format"),
        description="`json` (one object per line), `text`, or `auto`: text on a terminal.",
    )  # fmt: skip
    log_level: str = Field("INFO", validation_alias=_names("log_level"), description="Lowest level that is logged.")
    access_log: bool = Field(
        False, validation_alias=_names("access_log"),
        description="Log one line per request. Failures always are; refusals for want of room as a number per second.",
    )  # fmt: skip

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],  # noqa: ARG003 - pydantic names them
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,  # noqa: ARG003
        file_secret_settings: PydanticBaseSettingsSource,  # noqa: ARG003
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Read the environment only: no files of variables, in which each setting would be looked for once more."""
        return init_settings, env_settings

    @property
    def knows_callers(self) -> bool:
        """Whether callers show who they are."""
        return bool(self.keys_file or self.keys_from_registry or self.jwt_issuer or self.tls_client_authority)

    @property
    def answers_strangers(self) -> bool:
        """Whether it listens where others can reach it, and nobody has said how callers are known."""
        return not (self.knows_callers or self.allow_anonymous or _is_loopback(self.host))

    def environment(self) -> dict[str, str]:
        """Return these settings as environment variables: how they reach worker processes."""
        found = {}
        for name in type(self).model_fields:
            value = getattr(self, name)
            if isinstance(value, float) and name not in self.plain_numbers:
                value = f"{value}s"
            found[f"TRITON_GATEWAY_{name.upper()}"] = str(value)
        return found

    @property
    def gateways(self) -> int:
        """How many processes send calls to the same Tritons, as far as the settings tell."""
        return self.workers * (int(self.replicas) or 1 if self.replicas.isdecimal() else 1)

    @property
    def work_limit_rule(self) -> str | float:
        """The word that ``work_limit`` is, or its seconds."""
        rule = self.work_limit
        return rule if rule in ("auto", "always", "off") else parse_duration(rule)

    def pinned(self) -> tuple[str, ...]:
        """Return ``pinned_endpoints`` as paths without slashes around them."""
        return tuple(part.strip().strip("/") for part in self.pinned_endpoints.split(",") if part.strip(" /"))

    def files_rewrites(self) -> dict[str, str]:
        """Return ``files_rewrite`` as a mapping of prefixes."""
        pairs = (pair.split("=", 1) for pair in self.files_rewrite.split(",") if "=" in pair)
        return {source.strip(): target.strip() for source, target in pairs}


def trace_protocol(environ: Mapping[str, str]) -> str:
    """Return how spans leave, ``grpc`` or ``http/protobuf``; nothing where no ``OTEL_*`` endpoint asks for them.

    Raises ``ValueError`` for a protocol there is no exporter for.
    """
    endpoint = environ.get("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT") or environ.get("OTEL_EXPORTER_OTLP_ENDPOINT", "")
    is_off = environ.get("OTEL_SDK_DISABLED", "").lower() == "true" or environ.get("OTEL_TRACES_EXPORTER") == "none"
    if not endpoint or is_off:
        return ""
    chosen = environ.get("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL") or environ.get("OTEL_EXPORTER_OTLP_PROTOCOL")
    # The standard's default is http/protobuf; on the port that is gRPC's by the same standard nobody means that.
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

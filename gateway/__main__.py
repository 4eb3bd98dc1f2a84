"""Runs the gateway's workers: ``python -m gateway``, and what ``triton-gateway serve`` calls.

Sets what must be set before anything else is imported (tokenizers' threads), then opens the port. One worker is this
process; several share the port under ``workers.Workers``, which replaces those that end or hang and lets requests
finish on SIGTERM.

Public: ``deploy`` may import it.
"""

from __future__ import annotations

import contextlib
import errno
import importlib
import os
import socket
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Final

from pydantic import ValidationError

from gateway.settings import Settings, trace_protocol, variables_of

_BACKLOG: Final = 4096
"""The number of connections that may wait to be accepted, if the system allows it (``net.core.somaxconn``). Beyond it,
clients try again a second later.
"""


def run(settings: Settings) -> int:
    """Serve until SIGTERM or SIGINT, and return the exit code. If the port is taken, print one line and return 1.

    ``settings``: what the environment says, from which workers read them again.
    """
    try:
        _check(settings)
    except (ValueError, ModuleNotFoundError) as error:
        print(f"error: {error}", file=sys.stderr)  # noqa: T201 - what a person at the terminal must see
        return 2
    with contextlib.ExitStack() as stack:
        try:
            port, name = settings.port, "PORT"
            listener = stack.enter_context(_listen(settings.host, port))
            port, name = settings.grpc_port, "GRPC_PORT"
            if port:
                stack.enter_context(_reserve(settings.host, port))
        except OSError as error:
            reason = "is taken" if error.errno == errno.EADDRINUSE else f"cannot be used ({error.strerror})"
            print(  # noqa: T201 - as above
                f"error: port {port} on {settings.host} {reason}; choose another with TRITON_GATEWAY_{name}",
                file=sys.stderr,
            )
            return 1
        # One thread tokenizes a batch of texts: with several workers per machine, more threads would only contend, and
        # a fork after a parallel encode hangs the child.
        os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
        return _serve(settings, listener)


def _check(settings: Settings) -> None:
    """Check what can be checked before any worker starts.

    Raises ``ValueError`` or ``ModuleNotFoundError``, with what to do.
    """
    _check_exporter()
    _check_callers(settings)
    _check_tls(settings)
    if settings.payload_log:
        from gateway.payloads.log import payload_log

        payload_log(settings, lambda _outcome, _records: None)


def _check_exporter() -> None:
    """Check that spans can be exported, if they are to be."""
    if protocol := trace_protocol(os.environ):
        try:
            from gateway.spans import exporter

            exporter(protocol)
        except ModuleNotFoundError as error:
            raise ModuleNotFoundError(
                f"OTEL_EXPORTER_OTLP_ENDPOINT is set, but {error.name} is not installed; run `pip install "
                '".[otel]"`, or unset it'
            ) from error


def _check_callers(settings: Settings) -> None:
    """Check that callers can be authenticated.

    While the gateway runs, invalid keys leave the old ones in place. At its start there are no old ones.
    """
    if settings.answers_strangers:
        raise ValueError(
            f"this gateway would answer everybody who reaches {settings.host or 'it'}: give it keys "
            "(TRITON_GATEWAY_KEYS_FILE, made by `triton-gateway keys create`) or an issuer, or say with "
            "TRITON_GATEWAY_ALLOW_ANONYMOUS=true that a proxy in front of it knows the callers"
        )
    given = {"AUDIENCE": settings.jwt_audience, "KEYS": settings.jwt_keys, "CLAIMS": settings.jwt_claims}
    idle = "" if settings.jwt_issuer else next((name for name, value in given.items() if value), "")
    if idle:  # the operator believes that tokens are checked
        raise ValueError(
            f"TRITON_GATEWAY_JWT_{idle} does nothing without TRITON_GATEWAY_JWT_ISSUER: no token is checked"
        )
    if settings.knows_callers or settings.quota_store:
        from gateway.callers.sources import check, shared_quotas_of

        check(settings)
        shared_quotas_of(settings)


def _check_tls(settings: Settings) -> None:
    """Check that TLS can be served as configured."""
    if not settings.tls:
        if settings.tls_client_authority:
            raise ValueError(
                "TRITON_GATEWAY_TLS_CLIENT_AUTHORITY does nothing without TRITON_GATEWAY_TLS: the port speaks plain "
                "HTTP"
            )
        return
    from gateway.http.certificates import tls_context

    try:
        for name in filter(None, settings.tls_files):
            Path(name).read_bytes()  # whose error names the file, as that of the next line does not
        tls_context(*settings.tls_files)
    except OSError as error:
        raise ValueError(
            "TRITON_GATEWAY_TLS is no folder with tls.crt and tls.key, PEM files of a certificate and its key (without "
            f"a password), or TRITON_GATEWAY_TLS_CLIENT_AUTHORITY is no PEM file of certificates: {error}"
        ) from error


def _reserve(host: str, port: int) -> socket.socket:
    """Reserve the gRPC port, which each worker opens itself. Without ``listen``, this socket gets no connections."""
    # A program that shares its port (as Triton does) would accept a second listener, and get half of our calls.
    _listen(host, port).close()
    return _bound(host, port, socket.SO_REUSEPORT)


def _listen(host: str, port: int) -> socket.socket:
    listener = _bound(host, port, socket.SO_REUSEADDR)
    listener.listen(_BACKLOG)
    listener.set_inheritable(True)
    return listener


def _bound(host: str, port: int, option: int) -> socket.socket:
    made = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
    try:
        made.setsockopt(socket.SOL_SOCKET, option, 1)
        made.bind((host, port))
    except OSError:
        made.close()
        raise
    return made


def _serve(settings: Settings, listener: socket.socket) -> int:
    from gateway import logs, workers
    from gateway.app import create_app
    from gateway.http.certificates import tls_context
    from gateway.http.server import Server

    def make() -> Server:
        tls = partial(tls_context, *settings.tls_files) if settings.tls else None
        return Server(create_app, listener, tls=tls, backlog=_BACKLOG, drain_timeout=settings.drain_timeout)

    if settings.workers == 1:
        server = make()
        server.run()
        return 0 if server.started else 1
    logs.configure(settings.log_format)
    importlib.import_module("clearml.backend_api.session")  # which every worker needs

    return workers.Workers(
        make, settings.workers, drain=settings.drain_delay + settings.drain_timeout, ends=listener.close
    ).run()


def main(check: Callable[[Settings], None] = lambda _settings: None) -> int:
    """Serve with settings from the environment, after a ``check`` of them, whose errors pass through.

    Prints one line for each invalid variable and exits with code 2.
    """
    try:
        settings = Settings()
    except ValidationError as error:
        for fault in error.errors():
            name = str(fault["loc"][0]) if fault["loc"] else "?"
            name = variables_of(name)[0] if name in Settings.model_fields else name
            ours = fault["msg"].removeprefix("Value error, ")  # a message of our own says what it got
            reason = ours if ours != fault["msg"] else f"{ours}, got {fault['input']!r}"
            print(f"error: {name}: {reason}", file=sys.stderr)  # noqa: T201 - as above
        return 2
    check(settings)
    return run(settings)


if __name__ == "__main__":
    sys.path.insert(0, str(Path.cwd()))
    sys.exit(main())

"""``triton-gateway triton``: the embedded Triton as a child of ``up``. Hidden, because alone it serves no model.

Ends when the server ends or its streams are stuck, with the reason on stderr, so that the supervisor of ``up``, or of
a container, restarts it and says so.
"""

from __future__ import annotations

import contextlib
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from deploy.cli.commands._options import PORT, stop_on_signal

if TYPE_CHECKING:
    from deploy.tritonserver.launcher import Addresses

_STREAMS_EVERY_S: Final = 5.0
"""Seconds between two questions whether the server answers streams, and the time-out of one."""
_MISSES: Final = 3
"""Unanswered questions in a row after which the streams are stuck."""


@click.command(name="triton", hidden=True, context_settings={"ignore_unknown_options": True})
@click.option("--state-dir", type=click.Path(path_type=Path, file_okay=False), required=True,
              envvar="TRITON_GATEWAY_STATE_DIR")  # fmt: skip
@click.option("--repository", type=click.Path(path_type=Path, file_okay=False), required=True,
              envvar="TRITON_GATEWAY_MODEL_REPOSITORY")  # fmt: skip
@click.option("--host", default="127.0.0.1", show_default=True, envvar="TRITON_GATEWAY_TRITON_HOST")
@click.option("--key-file", default="", envvar="TRITON_GATEWAY_TRITON_KEY_FILE")
@click.option("--grpc-port", type=PORT, default=8001, show_default=True)
@click.option("--http-port", type=PORT, default=8000, show_default=True)
@click.option("--metrics-port", type=PORT, default=8002, show_default=True)
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def command(
    state_dir: Path, repository: Path, host: str, key_file: str, grpc_port: int, http_port: int, metrics_port: int,
    arguments: tuple[str, ...],
) -> int:  # fmt: skip
    """Run the embedded Triton (tritonserver on PATH, else the nvidia-pytriton wheel's) until SIGTERM.

    Loading models needs the key in --key-file (STATE_DIR/triton/key). The command creates the key if there is none.
    Other arguments (`--log-verbose=1`) are tritonserver's.
    """
    from deploy.tools.errors import ChildFailed
    from deploy.tritonserver.key import ensure_key
    from deploy.tritonserver.launcher import (
        STUCK,
        Ports,
        TritonLauncher,
        detect_server,
    )

    stop = stop_on_signal()
    server = detect_server()
    try:
        key = ensure_key(key_file, state_dir.absolute())
    except (OSError, ValueError) as error:
        raise ChildFailed(f"the key of Triton's control APIs cannot be read or created: {error}") from error
    launcher = TritonLauncher(
        server, key=key, state_dir=state_dir.absolute(), repository=repository.absolute(), host=host,
        ports=Ports(grpc=grpc_port, http=http_port, metrics=metrics_port),
        extra_arguments=arguments,
    )  # fmt: skip
    try:
        addresses = launcher.start()
        with contextlib.suppress(OSError):  # the disk of the log is full
            click.echo(f"Triton is live at {addresses.grpc}", err=True)
        stuck = threading.Event()
        threading.Thread(target=_watch_streams, args=(addresses, stuck), name="streams", daemon=True).start()
        while not stop.wait(0.2):
            if stuck.is_set():
                raise ChildFailed(f"tritonserver {STUCK} (its log: {launcher.log_path})")
            if launcher.ended:
                raise ChildFailed(f"{launcher.ended} (its log: {launcher.log_path})")
    finally:
        launcher.stop()
    return 0


def _watch_streams(addresses: Addresses, stuck: threading.Event) -> None:
    """Set ``stuck`` when the server has answered calls but no streams for a while.

    Triton's threads for streams can wait for each other for ever after a stream was cancelled. A stream for no model is
    answered with a refusal.
    """
    import grpc

    from deploy.tritonserver.launcher import is_live

    with grpc.insecure_channel(addresses.grpc) as channel:
        ask = channel.stream_stream("/inference.GRPCInferenceService/ModelStreamInfer")
        missed = 0
        while missed < _MISSES:
            time.sleep(_STREAMS_EVERY_S)
            try:
                list(ask(iter((b"",)), timeout=_STREAMS_EVERY_S))
            except grpc.RpcError as error:
                is_silent = error.code() is grpc.StatusCode.DEADLINE_EXCEEDED
                missed = missed + 1 if is_silent and is_live(addresses.http) else 0
            else:
                missed = 0
    stuck.set()

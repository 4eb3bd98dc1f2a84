"""``triton-gateway sync``: run only model sync, beside a Triton."""

from __future__ import annotations

from pathlib import Path

import click

from deploy.cli.commands._options import PORT, following_options, stop_on_signal


def read_pool(_context: click.Context, _option: click.Parameter, value: str) -> str:
    """Check the names of pools. Raises ``click.BadParameter``."""
    from gateway.pools import followed

    try:
        followed(value)
    except ValueError as error:
        raise click.BadParameter(str(error)) from error
    return value


@click.command(
    name="sync",
    epilog="`triton-gateway status` shows what is in the way.",
)
@click.option(
    "--state-dir", type=click.Path(path_type=Path, file_okay=False), default=Path(".triton-gateway"),
    show_default=True, envvar="TRITON_GATEWAY_STATE_DIR", show_envvar=True,
    help="Folder for downloaded models and the last working configuration.",
)  # fmt: skip
@click.option(
    "--repository", type=click.Path(path_type=Path, file_okay=False), default=None,
    envvar="TRITON_GATEWAY_MODEL_REPOSITORY", show_envvar=True,
    help="Folder that Triton was started with as --model-repository.  [default: STATE_DIR/triton/repository]",
)  # fmt: skip
@click.option(
    "--triton-grpc", default="127.0.0.1:8001", show_default=True, metavar="HOST:PORT",
    envvar=["TRITON_GATEWAY_TRITON_GRPC", "CLEARML_DEFAULT_TRITON_GRPC_ADDR"], show_envvar=True,
    help="gRPC address of the one Triton that reads this repository.",
)  # fmt: skip
@click.option(
    "--pool", default="", envvar="TRITON_GATEWAY_POOL", show_envvar=True, metavar="NAME,…", callback=read_pool,
    help="Pool that this Triton belongs to (docs/kubernetes.md#pools): only its endpoints are loaded. `*` loads all "
    "endpoints.  [default: default]",
)  # fmt: skip
@click.option(
    "--engine", type=click.Choice(["native", "python"]), default="native", show_default=True,
    envvar="TRITON_GATEWAY_TRITON_ENGINE", show_envvar=True,
    help="`native`: a full Triton with its own backends; `python`: the CPU server of the nvidia-pytriton wheel.",
)  # fmt: skip
@following_options
@click.option(
    "--health-port", type=PORT, default=None, envvar="TRITON_GATEWAY_SYNC_HEALTH_PORT", show_envvar=True,
    help="Answer probes on this port: /livez, /readyz (Triton holds the wanted models) and /status.  [default: no "
    "port]",
)  # fmt: skip
@click.option(
    "--triton-key-file", default="", envvar="TRITON_GATEWAY_TRITON_KEY_FILE", show_envvar=True, metavar="FILE",
    help="File with the key of Triton's control APIs.  [default: STATE_DIR/triton/key, if it exists]",
)  # fmt: skip
@click.option(
    "--controller", is_flag=True, envvar="TRITON_GATEWAY_CONTROLLER", show_envvar=True,
    help="Run the controller in this process too: for one machine, as `up` does.",
)  # fmt: skip
def command(
    state_dir: Path, repository: Path | None, triton_grpc: str, engine: str, serving_task_id: str,
    poll_s: float, files_rewrite: str, health_port: int | None, triton_key_file: str, log_format: str,
    pool: str, controller: bool,
) -> int:  # fmt: skip
    """Run model sync: load the models of a serving Task into one Triton, and unload the others.

    Triton must run with `--model-control-mode=explicit` and read the same folder. Anyone who may load models into a
    Triton can run code in it, so start it with a key (docs/triton.md) and name the key's file with --triton-key-file.
    For a Triton with TLS, set TRITON_GATEWAY_TRITON_TLS (docs/triton.md#tls).

    It needs a ClearML server: CLEARML_API_HOST, CLEARML_API_ACCESS_KEY and CLEARML_API_SECRET_KEY, or a clearml.conf.

    \b
    Example:
      tritonserver --model-control-mode=explicit --model-repository=/models &
      triton-gateway sync --repository /models --triton-grpc 127.0.0.1:8001 --poll-frequency 10s
    """
    from deploy.controller.run import beside
    from deploy.sync.run import run

    state_dir = state_dir.absolute()
    run(
        state_dir=state_dir, repository=(repository or state_dir / "triton" / "repository").absolute(),
        triton_grpc=triton_grpc, engine="python" if engine == "python" else "native", serving_task_id=serving_task_id,
        poll_s=poll_s, files_rewrite=files_rewrite, health_port=health_port, triton_key_file=triton_key_file,
        log_format=log_format, stop=stop_on_signal(), pool=pool,
        beside=beside(poll_s) if controller else None,
    )  # fmt: skip
    return 0

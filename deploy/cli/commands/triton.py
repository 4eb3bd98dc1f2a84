"""``triton-gateway triton``: the embedded Triton of ``up`` and of an image. Hidden, because alone it serves no model.

Prepares the server's folder and key, and becomes the server: whoever supervises this process supervises tritonserver.
"""

from __future__ import annotations

import os
from pathlib import Path

import click

from deploy.cli.commands._options import PORT


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
    from deploy.tools import ports
    from deploy.tools.errors import DeployError
    from deploy.tritonserver import launcher
    from deploy.tritonserver.key import ensure_key

    chosen = launcher.Ports(grpc_port, http_port, metrics_port)
    server = launcher.detect_server()
    for use, port in chosen._asdict().items():
        ports.require_free(host, port, what=f"embedded Triton ({use})", option=f"--{use}-port")
    try:
        key = ensure_key(key_file, state_dir.absolute())
    except (OSError, ValueError) as error:
        raise DeployError(f"the key of Triton's control APIs cannot be read or created: {error}") from error
    argv, env, cwd = launcher.prepared(
        server, state_dir=state_dir, repository=repository, ports=chosen, host=host, key=key,
        extra_arguments=arguments,
    )  # fmt: skip
    os.chdir(cwd)
    os.execve(argv[0], argv, env)  # noqa: S606 - a list, without a shell

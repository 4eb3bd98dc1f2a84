"""``python -m tests.cluster``: starts a cluster on loopback and keeps it until Ctrl-C (or SIGTERM)."""

from __future__ import annotations

import argparse
import contextlib
import shlex
import signal
import sys
import tempfile
from pathlib import Path

from tests import kube_tools
from tests.cluster import programs
from tests.cluster.control_plane import NotStarted, started
from tests.cluster.nodes import Machines, Played


def main() -> int:
    """Start it, say how it is reached, and wait."""
    parser = argparse.ArgumentParser(prog="python -m tests.cluster", description=__doc__)
    parser.add_argument("--folder", type=Path, help="an empty or new folder for its state (default: a temporary one)")
    parser.add_argument("--kubernetes", default="kubernetes", help="folder of programs/ that pins the version")
    parser.add_argument("--gateway-ready", type=float, default=5.0, help="seconds until a gateway pod is ready")
    parser.add_argument("--triton-ready", type=float, default=30.0, help="seconds until a Triton pod is ready")
    parser.add_argument("--gpu-nodes", type=int, default=4, help="nodes with four GPUs each")
    parser.add_argument(
        "--definitions", nargs="*", default=[*programs.MADE_OF], choices=[*programs.RESOURCES], metavar="NAME",
        help=f"custom resource definitions to add: {', '.join(programs.RESOURCES)} "
        f"(default: {', '.join(programs.MADE_OF)})",
    )  # fmt: skip
    options = parser.parse_args()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: sys.exit(0))
    with contextlib.ExitStack() as stack:
        if options.folder is None:
            folder = Path(
                stack.enter_context(tempfile.TemporaryDirectory(prefix="cluster-", ignore_cleanup_errors=True))
            )
        else:
            folder = options.folder.absolute()
            folder.mkdir(parents=True, exist_ok=True)
        try:
            cluster = stack.enter_context(
                started(
                    folder,
                    kubernetes=options.kubernetes,
                    machines=Machines(gpu_nodes=options.gpu_nodes),
                    played=Played(options.gateway_ready, options.triton_ready),
                )
            )
            cluster.define(*options.definitions)
        except (programs.CannotBuild, NotStarted) as error:
            sys.stderr.write(f"error: {error}\n")
            return 1
        sys.stdout.write(
            f"export KUBECONFIG={shlex.quote(str(cluster.kubeconfig))}\n"
            f"export PATH={shlex.quote(str(kube_tools.unpacked('kubectl').parent))}:$PATH\n"
            "# runs until Ctrl-C\n"
        )
        sys.stdout.flush()
        signal.pause()
    return 0


if __name__ == "__main__":
    sys.exit(main())
